#include "eager/zero_tensor.h"

#include "device/current.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <optional>

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

c10::IValue materialized(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor._is_zerotensor() ? at::zeros(tensor.sizes(), tensor.options()) : tensor;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& item : value.toListRef()) {
      list.push_back(materialized(item).toTensor());
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toListRef()) {
      list.push_back(item.isNone() ? std::nullopt : std::optional<at::Tensor>(materialized(item).toTensor()));
    }
    return list;
  }
  return value;
}

} // namespace

void materialize_zero_tensors(torch::jit::Stack& stack, size_t count) {
  for (auto value = stack.end() - static_cast<ptrdiff_t>(count); value != stack.end(); ++value) {
    *value = materialized(*value);
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
}

} // namespace neuron::eager
