// The chip-faithful mode: 64-bit numbers hold what the chip, which has 32-bit ones, would hold. An integer keeps its
// low 32 bits (two's complement), a float is rounded to float32; the dtype that the user sees stays.
#pragma once

#include "device/config.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace neuron::eager {

inline bool narrowing() {
  return config::get().narrow_64bit;
}

bool is_wide(c10::ScalarType dtype) noexcept;
// Narrows the elements of a CPU tensor, which may be a view, in place; leaves other dtypes alone. Warns the first time.
void narrow(const at::Tensor& tensor);
// Narrows all tensors and lists of tensors on the stack.
void narrow_all(const torch::jit::Stack& stack);

} // namespace neuron::eager
