// Matrix products in compiled graphs by our own kernels; see product_choice.h.
#pragma once

#include "eager/product_operands.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace neuron::eager {

// For a call of an `out=` form, whose last argument is written. False: nothing was done, as what is known about
// operands that lie like these does not allow it. Thread-safe.
bool multiply_by_own_kernel(const c10::OperatorHandle& op, ProductKind kind, const torch::jit::Stack& arguments);

} // namespace neuron::eager
