#pragma once

namespace neuron::eager {

// Registers what refuses sparse, nested and quantized neuron tensors. Costs milliseconds for each kind.
void refuse_other_layouts();

} // namespace neuron::eager
