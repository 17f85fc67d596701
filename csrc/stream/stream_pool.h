// All streams of the process: one default stream a device (id 0) and those that users made. Streams live until exit.
#pragma once

#include "stream/stream.h"

#include <functional>

namespace neuron {

Stream& default_stream(c10::DeviceIndex device);
// A new stream of its own; id > 0.
Stream& new_stream(c10::DeviceIndex device, int priority = 0);
// A stream from a small pool, round robin, as torch.cuda hands them out.
Stream& pooled_stream(c10::DeviceIndex device, bool high_priority);
Stream& lookup_stream(const c10::Stream& stream);

void for_each_stream(c10::DeviceIndex device, const std::function<void(Stream&)>& visit);
// Waits for every stream of the device, then raises the oldest late error, once. The GIL must not be held.
void synchronize_device(c10::DeviceIndex device);
// Finishes all work and ends the executor threads; for interpreter exit.
void stop_all_streams() noexcept;

} // namespace neuron
