// Timing with events, for the profiler's mode that does without Kineto:
// torch.autograd.profiler.profile(use_device=...).
#pragma once

namespace neuron::trace {

// Called once, when the extension is loaded.
void register_profiler_stubs();

} // namespace neuron::trace
