#include "bindings/bindings.h"
#include "device/current.h"
#include "stream/event.h"
#include "stream/finish_launches.h"
#include "stream/stream_pool.h"

#include <c10/core/Stream.h>

#include <chrono>
#include <thread>

namespace neuron {

namespace {

Stream& find_stream(c10::StreamId id, c10::DeviceIndex device) {
  return lookup_stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device), id));
}

} // namespace

void bind_stream(py::module& module) {
  module.def("_drain", &finish_launches);
  // Streams are (stream_id, device_index) here; torch_neuronx.streams makes objects of them.
  module.def("current_stream", [](c10::DeviceIndex device) {
    Stream& stream = current_stream(device);
    return std::make_pair(stream.id(), stream.device());
  });
  module.def("default_stream", [](c10::DeviceIndex device) {
    Stream& stream = default_stream(device < 0 ? current_device() : device);
    return std::make_pair(stream.id(), stream.device());
  });
  module.def("set_stream", [](c10::StreamId id, c10::DeviceIndex device) {
    Stream& stream = find_stream(id, device);
    exchange_device(device);
    exchange_stream(stream);
  });
  module.def(
      "stream_priority", [](c10::StreamId id, c10::DeviceIndex device) { return find_stream(id, device).priority(); });
  module.def("stream_handle", [](c10::StreamId id, c10::DeviceIndex device) {
    return reinterpret_cast<uintptr_t>(&find_stream(id, device));
  });
  // Event ids are torch.Event.event_id: the address of the event, or 0 while it was never recorded.
  module.def("event_elapsed_ms", [](uintptr_t start, uintptr_t end) {
    TORCH_CHECK_VALUE(start != 0 && end != 0, "Both events must be recorded before calculating elapsed time.");
    return reinterpret_cast<const Event*>(start)->elapsed_ms(*reinterpret_cast<const Event*>(end));
  });
  // Keeps the current stream busy for a time; for tests of asynchrony and for timing.
  module.def(
      "sleep_ns",
      [](int64_t nanoseconds) {
        LaunchSource source;
        source.name = "neuron::sleep";
        current_stream().submit(
            [nanoseconds] { std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds)); }, source);
      },
      py::call_guard<py::gil_scoped_release>());
}

} // namespace neuron
