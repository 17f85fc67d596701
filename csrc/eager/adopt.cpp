#include "eager/adopt.h"

#include "eager/neuron_tensor.h"

#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <utility>

namespace neuron::eager {

Adopter::Adopter(
    const ScannedCall& call, OpLaunch& launch, const memory::KernelMemory& kernel_memory, Stream& stream,
    const Record* record, Record* fresh)
    : call_(call), launch_(launch), kernel_memory_(kernel_memory), stream_(stream), record_(record), fresh_(fresh) {}

torch::jit::Stack Adopter::adopt_all() {
  if (call_.entry->mutable_args != 0 && sync_mutated() && fresh_ != nullptr) {
    fresh_->inline_only = true; // a launch that changes the shape of its arguments can't be enqueued
  }
  torch::jit::Stack outputs;
  auto& results = launch_.results();
  outputs.reserve(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.push_back(adopt_return(i, std::move(results[i])));
  }
  return outputs;
}

c10::IValue Adopter::adopt_return(size_t index, const c10::IValue& value) {
  const auto& entry = *call_.entry;
  const bool is_tensor = value.isTensor();
  if (fresh_ != nullptr) {
    fresh_->returns.push_back({!is_tensor, is_tensor ? 1u : 0u});
  }
  if (is_tensor) {
    if (entry.host_result == static_cast<int8_t>(index)) {
      ++spec_;
      return value;
    }
    const int8_t arg = entry.return_is_arg[index];
    if (arg >= 0 && call_.args[static_cast<size_t>(arg)].isTensor()) {
      TensorSpec spec;
      spec.kind = TensorSpec::Kind::Arg;
      for (size_t t = 0; t < call_.tensors.size(); ++t) {
        if (call_.tensors[t].arg == static_cast<uint32_t>(arg)) {
          spec.source = static_cast<int32_t>(t);
        }
      }
      describe(std::move(spec), at::Tensor());
      ++spec_;
      return call_.args[static_cast<size_t>(arg)];
    }
    // Taken out of the launch, so that a fresh result is held by nobody else and can be turned in place.
    at::Tensor result = value.toTensor();
    launch_.results()[index] = c10::IValue();
    return adopt_tensor(std::move(result));
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> outputs;
    const auto items = value.toListRef();
    for (const auto& item : items) {
      outputs.push_back(adopt_tensor(item.toTensor()));
    }
    if (fresh_ != nullptr) {
      fresh_->returns.back().count = static_cast<uint32_t>(items.size());
    }
    return outputs;
  }
  if (fresh_ != nullptr) {
    fresh_->inline_only = true;
  }
  return value; // a host value
}

at::Tensor Adopter::adopt_tensor(at::Tensor result) {
  const size_t index = spec_++;
  if (!result.defined()) {
    describe(TensorSpec{}, result);
    return result;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.layout() == c10::kStrided && !result.is_quantized() && result.unsafeGetTensorImpl()->has_storage(),
      call_.entry->name, " on neuron: results of layout ", result.layout(),
      result.is_quantized() ? " with a quantizer" : "", " are not supported");
  const auto* const storage = result.storage().unsafeGetStorageImpl();
  if (const auto* const block = record_ != nullptr ? launch_.prepared_for(index) : nullptr;
      block != nullptr && block->allocation.ptr == storage->data_ptr().get()) {
    return adopt_prepared(std::move(result), index);
  }
  for (size_t t = 0; t < launch_.alias_count(); ++t) {
    const auto* const alias = launch_.alias(t);
    if (alias == nullptr || alias->unsafe_storage().unsafeGetStorageImpl() != storage) {
      continue;
    }
    const auto& source = *call_.tensors[t].impl;
    TensorSpec spec;
    spec.source = static_cast<int32_t>(t);
    if (alias == result.unsafeGetTensorImpl()) {
      spec.kind = TensorSpec::Kind::Arg;
      describe(std::move(spec), result);
      return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(call_.tensors[t].impl));
    }
    spec.kind = TensorSpec::Kind::View;
    spec.offset = result.storage_offset() - source.storage_offset();
    describe(std::move(spec), result);
    auto shared = share(storage_of(source));
    auto view =
        make_tensor(std::move(shared), result.scalar_type(), result.sizes(), result.strides(), result.storage_offset());
    view._set_conj(result.is_conj());
    view._set_neg(result.is_neg());
    return view;
  }
  spec_ = index;
  auto adopted = adopt_fresh(std::move(result));
  spec_ = index + 1;
  return adopted;
}

at::Tensor Adopter::adopt_prepared(at::Tensor result, size_t index) {
  auto* const host = result.storage().unsafeGetStorageImpl();
  auto& block = const_cast<memory::PreparedBlock&>(*launch_.prepared_for(index));
  auto storage =
      make_storage(std::exchange(block.allocation, memory::Allocation{}), host->nbytes(), call_.device, stream_);
  storage->adopt_host_alias(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(host));
  adopted_.push_back({host, storage, static_cast<int32_t>(index)});
  return finish_fresh(std::move(result), std::move(storage));
}

at::Tensor Adopter::adopt_fresh(at::Tensor result) {
  auto* const host = result.storage().unsafeGetStorageImpl();
  TensorSpec spec;
  spec.kind = TensorSpec::Kind::Fresh;
  spec.nbytes = host->nbytes();
  spec.offset = result.storage_offset();
  c10::intrusive_ptr<NeuronStorageImpl> storage;
  for (const auto& seen : adopted_) {
    if (seen.host == host) {
      storage = seen.storage;
      spec.source = seen.spec;
    }
  }
  if (!storage) {
    spec.ordinal = kernel_memory_.ordinal_of(host->data_ptr().get());
    storage = take_memory(*host);
    auto alias = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(host);
    if (storage->nbytes() == host->nbytes()) {
      storage->adopt_host_alias(std::move(alias));
    }
    adopted_.push_back({host, storage, static_cast<int32_t>(spec_)});
  }
  describe(std::move(spec), result);
  return finish_fresh(std::move(result), std::move(storage));
}

at::Tensor Adopter::finish_fresh(at::Tensor result, c10::intrusive_ptr<c10::StorageImpl> storage) {
  if (result.use_count() == 1 && !result.unsafeGetTensorImpl()->is_wrapped_number()) {
    turn_into_neuron(result, std::move(storage));
    return result;
  }
  auto copy =
      make_tensor(std::move(storage), result.scalar_type(), result.sizes(), result.strides(), result.storage_offset());
  copy._set_conj(result.is_conj());
  copy._set_neg(result.is_neg());
  return copy;
}

c10::intrusive_ptr<NeuronStorageImpl> Adopter::take_memory(const c10::StorageImpl& host) {
  const size_t nbytes = host.nbytes();
  const void* const data = host.data_ptr().get();
  auto* const meant = const_cast<memory::PreparedBlock*>(record_ != nullptr ? launch_.prepared_for(spec_) : nullptr);
  auto* const taken = nbytes > 0 ? launch_.prepared_at(data) : nullptr;
  memory::Allocation target;
  if (taken != nullptr) {
    target = std::exchange(taken->allocation, memory::Allocation{});
    if (meant != nullptr && meant->nbytes == taken->nbytes) {
      // The kernel allocated in another order than the first time: the other result gets what was meant for this one.
      std::swap(meant->allocation, taken->allocation);
    }
  } else if (meant != nullptr && meant->nbytes == nbytes) {
    target = std::exchange(meant->allocation, memory::Allocation{});
  }
  if (target.ptr == nullptr && nbytes > 0) {
    target = memory::allocate(call_.device, nbytes, stream_);
  }
  if (target.ptr != data && nbytes > 0) {
    TORCH_INTERNAL_ASSERT(data != nullptr, call_.entry->name, ": a result has no memory");
    std::memcpy(target.ptr, data, nbytes);
    launch_counters().result_copies.fetch_add(1, std::memory_order_relaxed);
  }
  return make_storage(target, nbytes, call_.device, stream_);
}

bool Adopter::sync_mutated() {
  bool changed = false;
  for (size_t t = 0; t < call_.tensors.size(); ++t) {
    const auto* const alias = launch_.alias(t);
    if (alias == nullptr || !call_.entry->is_mutable(call_.tensors[t].arg)) {
      continue;
    }
    auto& original = *call_.tensors[t].impl;
    if (alias->unsafe_storage().data() != original.unsafe_storage().data()) {
      sync_grown_storage(*alias, original);
      changed = true;
    }
    if (alias->sizes() != original.sizes() || alias->strides() != original.strides() ||
        alias->storage_offset() != original.storage_offset()) {
      original.set_sizes_and_strides(alias->sizes(), alias->strides(), alias->storage_offset());
      changed = true;
    }
    if (alias->is_conj() != original.is_conj() || alias->is_neg() != original.is_neg()) {
      original._set_conj(alias->is_conj()); // lu_solve gives its `out=` so
      original._set_neg(alias->is_neg());
      changed = true;
    }
  }
  return changed;
}

void Adopter::sync_grown_storage(const c10::TensorImpl& alias, const c10::TensorImpl& original) {
  // The kernel resized its output: the CPU storage now has memory of its own, which has to become device memory.
  const auto& grown = *alias.unsafe_storage().unsafeGetStorageImpl();
  auto& storage = storage_of(original);
  memory::Allocation target;
  if (grown.nbytes() > 0) {
    target = memory::allocate(call_.device, grown.nbytes(), stream_);
    std::memcpy(target.ptr, grown.data_ptr().get(), grown.nbytes());
  }
  storage.set_data_ptr_noswap(
      target.block != nullptr ? memory::wrap(target, call_.device)
                              : c10::DataPtr(nullptr, c10::Device(c10::DeviceType::PrivateUse1, call_.device)));
  storage.set_nbytes(grown.nbytes());
}

void Adopter::describe(TensorSpec spec, const at::Tensor& result) {
  if (fresh_ == nullptr) {
    return;
  }
  if (result.defined()) {
    spec.dtype = result.scalar_type();
    spec.conj = result.is_conj();
    spec.neg = result.is_neg();
    spec.sizes = result.sizes().vec();
    spec.strides = result.strides().vec();
  }
  if (spec.conj || spec.neg) {
    fresh_->inline_only = true;
  }
  fresh_->specs.push_back(std::move(spec));
}

} // namespace neuron::eager
