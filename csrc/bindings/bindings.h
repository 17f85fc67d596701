// The parts of torch_neuronx._C; each is bound in the file of its name. The only folder that knows Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace neuron {

void bind_device(py::module& module);
void bind_stream(py::module& module);
void bind_random(py::module& module);
void bind_memory(py::module& module);
void bind_trace(py::module& module);
void bind_eager(py::module& module);
void bind_graph(py::module& module);

} // namespace neuron
