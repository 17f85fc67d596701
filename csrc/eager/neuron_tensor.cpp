#include "eager/neuron_tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace neuron::eager {

namespace {

// TensorImpl has no setter for its key set; a derived class may name the member, and only its address is used.
struct KeySetAccess : c10::TensorImpl {
  static void replace(c10::TensorImpl& tensor, c10::DispatchKeySet keys) { tensor.*(&KeySetAccess::key_set_) = keys; }
};

} // namespace

c10::intrusive_ptr<NeuronStorageImpl> make_storage(
    const memory::Allocation& allocation, size_t nbytes, c10::DeviceIndex device, Stream& stream) {
  auto data_ptr = allocation.block != nullptr
                      ? memory::wrap(allocation, device)
                      : c10::DataPtr(nullptr, c10::Device(c10::DeviceType::PrivateUse1, device));
  auto storage = c10::make_intrusive<NeuronStorageImpl>(
      c10::StorageImpl::use_byte_size_t{}, c10::SymInt(static_cast<int64_t>(nbytes)), std::move(data_ptr),
      &memory::device_allocator(), /*resizable=*/true);
  if (allocation.block != nullptr) {
    storage->mark_use(stream, memory::ready_after(allocation.block));
  }
  return storage;
}

c10::intrusive_ptr<NeuronStorageImpl> allocate_storage(size_t nbytes, c10::DeviceIndex device, Stream& stream) {
  memory::Allocation allocation;
  if (nbytes > 0) {
    allocation = memory::allocate(device, nbytes, stream);
  }
  return make_storage(allocation, nbytes, device, stream);
}

at::Tensor make_tensor(
    c10::intrusive_ptr<c10::StorageImpl> storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
    c10::IntArrayRef strides, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor host_view(const at::Tensor& tensor) {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(host_alias(storage_of(impl))), c10::DispatchKeySet(c10::DispatchKey::CPU), impl.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(), impl.storage_offset());
  view._set_conj(impl.is_conj());
  view._set_neg(impl.is_neg());
  return view;
}

void turn_into_neuron(const at::Tensor& tensor, c10::intrusive_ptr<c10::StorageImpl> storage) {
  auto& impl = *tensor.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(c10::Storage(std::move(storage)));
  // The backend bit, and the autocast key, which is a key of its own for every backend.
  const auto keys = (impl.key_set().remove_backend(c10::BackendComponent::CPUBit) -
                     c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::CPUBit)) |
                    c10::DispatchKeySet(c10::BackendComponent::PrivateUse1Bit) |
                    c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse1Bit);
  KeySetAccess::replace(impl, keys);
}

} // namespace neuron::eager
