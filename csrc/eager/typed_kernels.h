#pragma once

#include <torch/library.h>

namespace neuron::eager {

void register_typed_kernels(torch::Library& library);

} // namespace neuron::eager
