// Histograms of integers, which CUDA counts and the CPU's kernel refuses: code that asks for the device type (routers
// of mixtures of experts do) sends integers to every device but the CPU.
#include "eager/boxed_kernel.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace neuron::eager {

namespace {

// Doubles hold the integers that are counted, and the counts, exactly.
void histc(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto& input = (*stack)[stack->size() - op.schema().arguments().size()];
  const auto dtype = input.toTensor().scalar_type();
  if (!c10::isIntegralType(dtype, /*includeBool=*/false)) {
    boxed_kernel(op, keys, stack);
    return;
  }
  input = input.toTensor().to(c10::kDouble);
  boxed_kernel(op, keys, stack);
  stack->back() = stack->back().toTensor().to(dtype);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", torch::CppFunction::makeFromBoxedFunction<&histc>());
}

} // namespace neuron::eager
