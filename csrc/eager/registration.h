#pragma once

namespace neuron::eager {

// Hooks the eager layer into the process: storage type, host allocator, composite operators. Called at module load.
void install();

} // namespace neuron::eager
