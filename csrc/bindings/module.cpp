#include "bindings/bindings.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The core of torch_neuronx; use torch.neuron instead.";
  neuron::bind_device(module);
  neuron::bind_stream(module);
  neuron::bind_random(module);
  neuron::bind_memory(module);
  neuron::bind_trace(module);
  neuron::bind_eager(module);
  neuron::bind_graph(module);
}
