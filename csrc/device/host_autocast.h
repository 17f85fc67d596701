// Host-autocast mode, for runs that are compared with the CPU: torch.autocast("neuron") casts by the lists that PyTorch
// has for the CPU, which differ from those for accelerators.
#pragma once

namespace neuron {

bool host_autocast() noexcept;
void set_host_autocast(bool enabled);

} // namespace neuron
