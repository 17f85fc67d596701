#include "eager/alias.h"

#include "memory/storage.h"

#include <c10/core/InferenceMode.h>

namespace neuron::eager {

namespace {

c10::intrusive_ptr<c10::TensorImpl> make_alias() {
  // Below autograd nothing asks, but a kernel may bump a version, which inference tensors refuse.
  c10::InferenceMode no_inference(false);
  return c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(), c10::Device(c10::DeviceType::CPU));
}

std::deque<c10::intrusive_ptr<c10::TensorImpl>>& thread_slots() {
  thread_local std::deque<c10::intrusive_ptr<c10::TensorImpl>> slots;
  return slots;
}

} // namespace

void point_alias(c10::intrusive_ptr<c10::TensorImpl>& slot, const c10::TensorImpl& source) {
  if (C10_UNLIKELY(!slot || slot.use_count() != 1)) {
    slot = make_alias();
  }
  auto& alias = *slot;
  alias.set_storage_and_dtype(c10::Storage(host_alias(storage_of(source))), source.dtype());
  if (C10_UNLIKELY(source.dim() == 0 && alias.dim() != 0)) {
    // Kernels of PyTorch read size(0) of tensors without dimensions (norm along 0): leave there what a new tensor has.
    alias.set_sizes_contiguous(c10::IntArrayRef{0});
  }
  alias.set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  if (C10_UNLIKELY(alias.is_conj() != source.is_conj())) {
    alias._set_conj(source.is_conj());
  }
  if (C10_UNLIKELY(alias.is_neg() != source.is_neg())) {
    alias._set_neg(source.is_neg());
  }
  if (C10_UNLIKELY(alias.is_wrapped_number() != source.is_wrapped_number())) {
    alias.set_wrapped_number(source.is_wrapped_number());
  }
}

size_t& AliasPool::next() noexcept {
  thread_local size_t value = 0;
  return value;
}

at::Tensor AliasPool::alias(const at::Tensor& tensor) {
  auto& slots = thread_slots();
  const size_t index = next()++;
  if (index == slots.size()) {
    slots.emplace_back();
  }
  point_alias(slots[index], *tensor.unsafeGetTensorImpl());
  return at::Tensor(slots[index]);
}

const c10::DispatchKeySet& keys_above_kernels() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  return keys;
}

} // namespace neuron::eager
