// Tensors without values, and storages that grow.
#include "eager/factories.h"

#include "device/config.h"
#include "device/current.h"
#include "eager/neuron_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

namespace neuron::eager {

namespace {

struct Placement {
  c10::ScalarType dtype;
  c10::DeviceIndex device;
};

Placement placement(
    std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout, std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  config::ensure_started();
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(c10::kStrided) == c10::kStrided, "neuron tensors are strided; layout ", *layout,
      " is not supported");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const auto index = device.has_value() && device->has_index() ? device->index() : current_device();
  config::check_device_index(index);
  return {dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype())), index};
}

at::Tensor finish_empty(at::Tensor tensor) {
  if (C10_UNLIKELY(
          at::globalContext().deterministicAlgorithms() &&
          at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

} // namespace

at::Tensor empty_memory_format(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  const auto where = placement(dtype, layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(where.dtype));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(allocate_storage(nbytes, where.device, current_stream(where.device))),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(where.dtype));
  auto* const impl = tensor.unsafeGetTensorImpl();
  if (size.size() != 1 || size[0] != 0) {
    impl->set_sizes_contiguous(size);
  }
  if (format.has_value() && *format != c10::MemoryFormat::Contiguous) {
    TORCH_CHECK(
        *format != c10::MemoryFormat::Preserve, "unsupported memory format option ", c10::MemoryFormat::Preserve);
    impl->empty_tensor_restride(*format);
  }
  return finish_empty(std::move(tensor));
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const auto where = placement(dtype, layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const size_t nbytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(where.dtype));
  auto storage = allocate_storage(nbytes, where.device, current_stream(where.device));
  return finish_empty(make_tensor(std::move(storage), where.dtype, size, stride, 0));
}

void grow_storage(const at::Tensor& self, size_t nbytes) {
  if (self.storage().nbytes() < nbytes) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), nbytes);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto* const impl = self.unsafeGetTensorImpl();
  at::detail::check_size_nonnegative(size);
  const size_t old_nbytes = self.storage().nbytes();
  if (self.sizes() != size) {
    const size_t itemsize = self.dtype().itemsize();
    const auto offset = static_cast<size_t>(self.storage_offset());
    const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
    impl->set_sizes_contiguous(size);
    if (impl->numel() > 0) {
      grow_storage(self, nbytes);
    }
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", c10::MemoryFormat::Preserve);
    impl->empty_tensor_restride(*format);
  }
  if (C10_UNLIKELY(
          at::globalContext().deterministicAlgorithms() &&
          at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_nbytes));
  }
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride, /*check_offset_in_bounds=*/false);
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  const size_t itemsize = self.dtype().itemsize();
  size_t nbytes = 0;
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
    nbytes = at::detail::computeStorageNbytesContiguous(size, itemsize, static_cast<size_t>(offset));
  } else {
    impl->set_sizes_and_strides(size, stride);
    nbytes = at::detail::computeStorageNbytes(size, stride, itemsize, static_cast<size_t>(offset));
  }
  if (impl->numel() > 0) {
    grow_storage(self, nbytes);
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  const auto device = self.device().index();
  return set_storage(self, c10::Storage(allocate_storage(0, device, current_stream(device))), 0, {0}, {});
}

} // namespace neuron::eager
