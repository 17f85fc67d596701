// The device part of torch.profiler: a Kineto child profiler that reads the trace ring.
#pragma once

namespace neuron::trace {

// Makes ProfilerActivity.PrivateUse1 show launches. Called once, when the extension is loaded.
void register_kineto_plugin();

} // namespace neuron::trace
