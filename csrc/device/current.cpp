#include "device/current.h"

#include "device/config.h"
#include "stream/stream_pool.h"

#include <c10/macros/Macros.h>

#include <array>
#include <utility>

namespace neuron {

namespace {

thread_local c10::DeviceIndex t_device = 0;
// Null where the thread uses the device's default stream.
thread_local std::array<Stream*, config::kMaxDevices + 1> t_streams{};

} // namespace

c10::DeviceIndex current_device() noexcept {
  return t_device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  if (index == t_device) {
    return index;
  }
  config::check_device_index(index);
  return std::exchange(t_device, index);
}

Stream& current_stream(c10::DeviceIndex index) {
  if (index < 0) {
    index = t_device;
  } else {
    config::check_device_index(index);
  }
  Stream*& stream = t_streams[static_cast<size_t>(index)];
  if (C10_UNLIKELY(stream == nullptr)) {
    stream = &default_stream(index);
  }
  return *stream;
}

Stream& exchange_stream(Stream& stream) {
  Stream& previous = current_stream(stream.device());
  t_streams[static_cast<size_t>(stream.device())] = &stream;
  return previous;
}

} // namespace neuron
