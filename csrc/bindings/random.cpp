#include "bindings/bindings.h"
#include "device/generator.h"
#include "device/host_autocast.h"
#include "eager/launch_generator.h"

namespace neuron {

void bind_random(py::module& module) {
  module.def("default_generator", [](c10::DeviceIndex index) { return default_generator(index); });
  module.def("seed_default_generators", &seed_default_generators);
  // For tests and for kernels written in Python: what a random op does at its call.
  module.def(
      "reserve_random",
      [](at::Generator generator, uint64_t increment) {
        auto* neuron = at::check_generator<NeuronGenerator>(generator);
        const PhiloxState state = neuron->reserve(increment);
        return std::make_pair(state.seed, state.offset);
      },
      py::arg("generator"), py::arg("increment"));
  // For generated code that is run as Python: what a random op draws from at its call. A host generator, valid until
  // the thread's next call, or None for the default one.
  module.def(
      "launch_generator",
      [](c10::DeviceIndex device) {
        return host_rng() ? std::nullopt
                          : std::optional(eager::launch_generator(eager::reserve_for_launch(std::nullopt, device)));
      },
      py::arg("device_index"));
  module.def("host_rng", &host_rng);
  module.def("set_host_rng", &set_host_rng);
  module.def("host_autocast", &host_autocast);
  module.def("set_host_autocast", &set_host_autocast);
}

} // namespace neuron
