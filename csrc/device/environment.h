// Switches in environment variables, read alike everywhere. Bad values are refused by torch_neuronx.config at first
// use.
#pragma once

namespace neuron {

// True for 1, true, yes and on, in any case of letters.
bool switch_is_on(const char* variable) noexcept;

} // namespace neuron
