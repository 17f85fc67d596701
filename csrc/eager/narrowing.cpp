#include "eager/narrowing.h"

#include <c10/util/Exception.h>

#include <cstdint>

namespace neuron::eager {

namespace {

int64_t narrowed(int64_t value) {
  return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(value)));
}

uint64_t narrowed(uint64_t value) {
  return static_cast<uint32_t>(value);
}

double narrowed(double value) {
  return static_cast<double>(static_cast<float>(value));
}

template <class T>
void narrow_elements(T* data, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (sizes.empty()) {
    const T value = narrowed(*data);
    if (value != *data) { // memory that is as it should be is not written: others may be reading it
      *data = value;
    }
    return;
  }
  for (int64_t i = 0; i < sizes.front(); ++i) {
    narrow_elements(data + i * strides.front(), sizes.slice(1), strides.slice(1));
  }
}

template <class T>
void narrow_elements(const at::Tensor& tensor) {
  narrow_elements(static_cast<T*>(tensor.mutable_data_ptr()), tensor.sizes(), tensor.strides());
}

} // namespace

bool is_wide(c10::ScalarType dtype) noexcept {
  return dtype == c10::ScalarType::Long || dtype == c10::ScalarType::UInt64 || dtype == c10::ScalarType::Double ||
         dtype == c10::ScalarType::ComplexDouble;
}

void narrow(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_wide(tensor.scalar_type())) {
    return;
  }
  TORCH_WARN_ONCE(
      "64-bit values are narrowed as on the chip: integers to their low 32 bits, floats to float32 (dtypes stay as "
      "they "
      "are). TORCH_NEURONX_NARROW_64BIT=0 keeps them exact.");
  if (tensor.numel() == 0) {
    return;
  }
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Long:
      return narrow_elements<int64_t>(tensor);
    case c10::ScalarType::UInt64:
      return narrow_elements<uint64_t>(tensor);
    case c10::ScalarType::Double:
      return narrow_elements<double>(tensor);
    default: {
      // A complex number is two floats, the second right after the first.
      auto sizes = tensor.sizes().vec();
      std::vector<int64_t> strides;
      for (const int64_t stride : tensor.strides()) {
        strides.push_back(2 * stride);
      }
      sizes.push_back(2);
      strides.push_back(1);
      narrow_elements(static_cast<double*>(tensor.mutable_data_ptr()), sizes, strides);
    }
  }
}

void narrow_all(const torch::jit::Stack& stack) {
  for (const auto& value : stack) {
    if (value.isTensor()) {
      narrow(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& item : value.toListRef()) {
        narrow(item.toTensor());
      }
    }
  }
}

} // namespace neuron::eager
