#include "eager/op_launch.h"

#include "eager/alias.h"
#include "eager/launch_generator.h"
#include "eager/narrowing.h"
#include "eager/region_launch.h"
#include "eager/thread_settings.h"
#include "memory/guard_pages.h"
#include "stream/stream.h"

#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>
#include <c10/util/ApproximateClock.h>

#include <cstring>
#include <memory>

namespace neuron::eager {

namespace {

bool same(c10::IntArrayRef a, const std::vector<int64_t>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

} // namespace

LaunchCounters& launch_counters() {
  static auto* const counters = new LaunchCounters;
  return *counters;
}

void OpLaunch::bind(const ScannedCall& call, bool outlives_call) {
  entry_ = call.entry;
  bound_ = 0;
  // Kernels that write ask whether two arguments are one tensor (`out=` given an input, say).
  same_tensors_ = call.overlaps ? &call.tensors : nullptr;
  grad_mode_ = c10::GradMode::is_enabled();
  own_thread_count_ = t_own_thread_count;
  stack_.clear();
  stack_.reserve(call.args.size());
  for (const auto& value : call.args) {
    stack_.push_back(rebind(value, outlives_call));
  }
  if (C10_UNLIKELY(narrowing())) {
    for (size_t t = 0; t < bound_; ++t) {
      if (aliases_[t] && entry_->is_mutable(call.tensors[t].arg)) {
        written_.emplace_back(aliases_[t]);
      }
    }
  }
}

c10::IValue OpLaunch::rebind(const c10::IValue& value, bool outlives_call) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (C10_LIKELY(tensor.is_privateuseone())) {
      return alias_of(*tensor.unsafeGetTensorImpl());
    }
    return tensor.defined() ? host_value(tensor, outlives_call) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    const auto items = value.toListRef();
    list.reserve(items.size());
    for (const auto& item : items) {
      list.push_back(rebind(item, outlives_call).toTensor());
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    const auto items = value.toListRef();
    list.reserve(items.size());
    for (const auto& item : items) {
      list.push_back(item.isNone() ? std::nullopt : std::optional<at::Tensor>(rebind(item, outlives_call).toTensor()));
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

at::Tensor OpLaunch::host_value(const at::Tensor& tensor, bool outlives_call) {
  if (bound_ == aliases_.size()) {
    aliases_.emplace_back();
  }
  aliases_[bound_++].reset(); // keeps the index in step with ScannedCall::tensors
  // A number wrapped by the dispatcher belongs to this call alone; a user's tensor may change before the launch runs.
  return outlives_call && !tensor.unsafeGetTensorImpl()->is_wrapped_number() ? at::clone(tensor) : tensor;
}

at::Tensor OpLaunch::alias_of(const c10::TensorImpl& source) {
  if (bound_ == aliases_.size()) {
    aliases_.emplace_back();
  }
  auto& alias = aliases_[bound_++];
  if (C10_UNLIKELY(same_tensors_ != nullptr)) {
    for (size_t i = 0; i + 1 < bound_; ++i) {
      if ((*same_tensors_)[i].impl == &source) {
        alias = aliases_[i];
        return at::Tensor(alias);
      }
    }
  }
  point_alias(alias, source);
  return at::Tensor(alias);
}

void OpLaunch::expect(size_t spec, const memory::Allocation& memory) {
  memory::PreparedBlock block;
  block.allocation = memory;
  block.nbytes = record_->specs[spec].nbytes;
  block.ordinal = record_->specs[spec].ordinal;
  prepared_of_spec_.resize(record_->specs.size(), -1);
  prepared_of_spec_[spec] = static_cast<int32_t>(prepared_.size());
  prepared_.push_back(block);
}

const memory::PreparedBlock* OpLaunch::prepared_for(size_t spec) const {
  const int32_t index = spec < prepared_of_spec_.size() ? prepared_of_spec_[spec] : -1;
  return index < 0 ? nullptr : &prepared_[static_cast<size_t>(index)];
}

void OpLaunch::call_kernel() {
  if (C10_UNLIKELY(random_)) {
    if (entry_->generator_arg >= 0) {
      stack_[static_cast<size_t>(entry_->generator_arg)] = launch_generator(philox_);
    }
  }
  follow_thread_settings(own_thread_count_);
  const Stream* const stream = executed_stream();
  const auto own_product = entry_->product != ProductKind::None && record_
                               ? record_->products.covered(entry_->product, stack_)
                               : std::nullopt;
  // What is known about threads is about the kernel that the record prefers.
  const bool threads_known =
      entry_->tries_one_thread && record_ && own_product.has_value() == record_->products.has_own();
  const bool one_thread =
      threads_known && record_->threads.prefers_one(/*caller_waits=*/stream != nullptr && stream->awaited());
  OneThread scope(one_thread);
  if (one_thread) {
    launch_counters().one_thread_runs.fetch_add(1, std::memory_order_relaxed);
  }
  const auto start = c10::getApproximateTime();
  if (own_product) {
    stack_.clear();
    stack_.emplace_back(own_product->multiply(record_->products.order()));
    launch_counters().own_products.fetch_add(1, std::memory_order_relaxed);
  } else {
    entry_->op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  }
  if (C10_UNLIKELY(narrowing())) {
    narrow_all(stack_);
    for (const auto& tensor : written_) {
      narrow(tensor);
    }
  }
  if (record_) {
    record_->note_run_ticks(static_cast<uint64_t>(c10::getApproximateTime() - start), one_thread);
  }
}

void OpLaunch::run() {
  memory::DeviceAccess access;
  c10::AutoGradMode grad_mode(grad_mode_);
  if (entry_->tries_one_thread) {
    follow_thread_settings(own_thread_count_);
    if (entry_->product != ProductKind::None) {
      record_->products.try_once(entry_->op, entry_->product, stack_);
    }
    if (record_->products.has_own()) {
      record_->threads.accept(); // its results do not depend on how it is shared out
    } else {
      record_->threads.try_once(*entry_, stack_, record_->run_ticks.load(std::memory_order_relaxed));
    }
  }
  {
    memory::KernelMemory kernel_memory(prepared_.data(), prepared_.size());
    call_kernel();
  }
  size_t spec = 0;
  for (size_t r = 0; r < record_->returns.size(); ++r) {
    if (record_->returns[r].is_list) {
      const auto items = stack_[r].toListRef();
      TORCH_INTERNAL_ASSERT(
          items.size() == record_->returns[r].count, entry_->name, ": result list changed its length");
      for (const auto& item : items) {
        check_result(spec++, item.toTensor());
      }
    } else {
      check_result(spec++, stack_[r].toTensor());
    }
  }
  if (C10_UNLIKELY(!misplaced_.empty())) {
    move_misplaced();
  }
}

size_t OpLaunch::run_with(const QueuedLaunches& queued) {
  if (C10_LIKELY(eager_mode() == EagerMode::Strict) || !for_tiles()) {
    run();
    return 0;
  }
  if (!entry_->tile_form->list) { // alone it gains nothing
    const auto* const next = queued.size() > 0 ? dynamic_cast<const OpLaunch*>(&queued[0]) : nullptr;
    if (next == nullptr || !next->for_tiles()) {
      run();
      return 0;
    }
  }
  return run_region(*this, queued);
}

bool OpLaunch::for_tiles() const {
  return entry_->tile_form != nullptr && record_ && !narrowing();
}

bool OpLaunch::append_tile_steps(std::vector<TileStep>& steps) {
  if (!for_tiles()) {
    return false;
  }
  follow_thread_settings(own_thread_count_);
  const auto variant = record_->tiles.variant_for(entry_->op, *entry_->tile_form, stack_);
  if (!variant) {
    return false;
  }
  const auto result = [this](size_t index, const at::Tensor& like) -> void* {
    const auto* block = prepared_for(index);
    const TensorSpec& spec = record_->specs[index];
    const bool fits = block != nullptr && spec.kind == TensorSpec::Kind::Fresh && spec.offset == 0 &&
                      spec.dtype == like.scalar_type() && same(like.sizes(), spec.sizes) &&
                      same(like.strides(), spec.strides);
    return fits ? block->allocation.ptr : nullptr;
  };
  return append_steps(*entry_->tile_form, *variant, stack_, result, steps);
}

void OpLaunch::check_result(size_t index, const at::Tensor& result) {
  const TensorSpec& spec = record_->specs[index];
  if (spec.kind == TensorSpec::Kind::Arg || spec.kind == TensorSpec::Kind::View) {
    return; // the caller already has the tensor, and its memory is the one the kernel worked on
  }
  if (spec.kind == TensorSpec::Kind::Undefined) {
    TORCH_CHECK(!result.defined(), entry_->name, ": a result is there that the first call with this signature lacked");
    return;
  }
  TORCH_CHECK(
      result.defined() && same(result.sizes(), spec.sizes) && same(result.strides(), spec.strides) &&
          result.scalar_type() == spec.dtype && result.storage_offset() == spec.offset,
      entry_->name, ": the result has another shape than the first call with this signature had, so its shape depends ",
      "on data; add the operator to data_dependent() in csrc/eager/policy.cpp (sizes ", result.sizes(), ", expected ",
      c10::IntArrayRef(spec.sizes), ")");
  const auto* block = prepared_for(index);
  if (block == nullptr || block->nbytes == 0) {
    return;
  }
  if (C10_UNLIKELY(result.storage().data() != block->allocation.ptr)) {
    TORCH_INTERNAL_ASSERT(result.storage().nbytes() >= block->nbytes, entry_->name, ": a result has too little memory");
    misplaced_.emplace_back(block, result);
  }
}

void OpLaunch::move_misplaced() {
  // Two results may lie in each other's memory, when the kernel allocated in another order than the first time.
  std::vector<std::unique_ptr<char[]>> aside;
  if (misplaced_.size() > 1) {
    for (const auto& [block, result] : misplaced_) {
      aside.push_back(std::make_unique<char[]>(block->nbytes));
      std::memcpy(aside.back().get(), result.storage().data(), block->nbytes);
    }
  }
  for (size_t i = 0; i < misplaced_.size(); ++i) {
    const auto& [block, result] = misplaced_[i];
    std::memcpy(block->allocation.ptr, aside.empty() ? result.storage().data() : aside[i].get(), block->nbytes);
    launch_counters().result_copies.fetch_add(1, std::memory_order_relaxed);
  }
}

memory::PreparedBlock* OpLaunch::prepared_at(const void* data) {
  for (auto& block : prepared_) {
    if (block.allocation.ptr == data) {
      return &block;
    }
  }
  return nullptr;
}

void OpLaunch::release() noexcept {
  stack_.clear();
  written_.clear();
  prepared_.clear();
  prepared_of_spec_.clear();
  misplaced_.clear();
  record_.reset();
  random_ = false;
}

} // namespace neuron::eager
