// Tensors that stand for zeros without memory; forward-mode differentiation makes them.
#pragma once

#include <ATen/core/stack.h>

#include <cstddef>

namespace neuron::eager {

// Replaces those among the last `count` values of the stack by tensors with memory.
void materialize_zero_tensors(torch::jit::Stack& stack, size_t count);

} // namespace neuron::eager
