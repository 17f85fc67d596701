// Waiting for everything that was launched, on every stream of every device.
#pragma once

namespace neuron {

// Late errors stay where they are. Nothing to do before the first use, and in a forked child. Releases the GIL.
void finish_launches();

} // namespace neuron
