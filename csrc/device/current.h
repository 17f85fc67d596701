// The calling thread's current device and current stream of each device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace neuron {

class Stream;

c10::DeviceIndex current_device() noexcept;
// Returns the device that was current before.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);

// index -1 means the current device.
Stream& current_stream(c10::DeviceIndex index = -1);
Stream& exchange_stream(Stream& stream);

} // namespace neuron
