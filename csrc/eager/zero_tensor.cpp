// Tensors that stand for zeros without memory; forward-mode differentiation makes them.
#include "device/current.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

namespace neuron::eager {

namespace {

at::Tensor efficient_zero_tensor(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> /*layout*/,
    std::optional<c10::Device> device, std::optional<bool> /*pin_memory*/) {
  const auto index = device.has_value() && device->has_index() ? device->index() : current_device();
  at::native::ZeroTensorAllocator allocator(c10::Device(c10::DeviceType::PrivateUse1, index));
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype())), std::nullopt);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
}

} // namespace neuron::eager
