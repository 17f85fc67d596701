#include "stream/stream_pool.h"

#include "device/config.h"

#include <c10/util/Exception.h>

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace neuron {

namespace {

constexpr size_t kMaxDevices = 128; // c10::DeviceIndex has 8 bits
constexpr int kPooledStreams = 8;   // per device and priority; handed out round robin

struct DeviceStreams {
  std::mutex mutex;
  std::deque<std::unique_ptr<Stream>> streams; // index = stream id; 0 is the default stream
  std::array<int, 2> pool_next{};
  std::array<std::vector<Stream*>, 2> pool{};
};

// Never destroyed: executor threads and tensors may outlive static destruction.
DeviceStreams& streams_of(c10::DeviceIndex device) {
  static auto* const all = new std::array<DeviceStreams, kMaxDevices>();
  config::check_device_index(device);
  return (*all)[static_cast<size_t>(device)];
}

Stream& append_stream(DeviceStreams& streams, c10::DeviceIndex device, int priority) {
  const auto id = static_cast<c10::StreamId>(streams.streams.size());
  return *streams.streams.emplace_back(std::make_unique<Stream>(device, id, priority));
}

Stream& first_stream(DeviceStreams& streams, c10::DeviceIndex device) {
  if (streams.streams.empty()) {
    append_stream(streams, device, 0);
  }
  return *streams.streams.front();
}

} // namespace

Stream& default_stream(c10::DeviceIndex device) {
  auto& streams = streams_of(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  return first_stream(streams, device);
}

Stream& new_stream(c10::DeviceIndex device, int priority) {
  auto& streams = streams_of(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  first_stream(streams, device);
  return append_stream(streams, device, priority);
}

Stream& pooled_stream(c10::DeviceIndex device, bool high_priority) {
  auto& streams = streams_of(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  first_stream(streams, device);
  auto& pool = streams.pool[high_priority ? 1 : 0];
  if (pool.size() < kPooledStreams) {
    pool.push_back(&append_stream(streams, device, high_priority ? -1 : 0));
    return *pool.back();
  }
  int& next = streams.pool_next[high_priority ? 1 : 0];
  Stream& chosen = *pool[static_cast<size_t>(next)];
  next = (next + 1) % kPooledStreams;
  return chosen;
}

Stream& lookup_stream(const c10::Stream& stream) {
  TORCH_CHECK(
      stream.device_type() == c10::DeviceType::PrivateUse1, "expected a neuron stream, got a stream of ",
      stream.device());
  auto& streams = streams_of(stream.device_index());
  std::lock_guard<std::mutex> lock(streams.mutex);
  first_stream(streams, stream.device_index());
  const auto index = static_cast<size_t>(stream.id());
  TORCH_CHECK(index < streams.streams.size(), "no stream ", stream.id(), " on ", stream.device());
  return *streams.streams[index];
}

void for_each_stream(c10::DeviceIndex device, const std::function<void(Stream&)>& visit) {
  auto& streams = streams_of(device);
  size_t count = 0;
  {
    std::lock_guard<std::mutex> lock(streams.mutex);
    count = streams.streams.size();
  }
  for (size_t i = 0; i < count; ++i) {
    Stream* stream = nullptr;
    {
      std::lock_guard<std::mutex> lock(streams.mutex);
      stream = streams.streams[i].get();
    }
    visit(*stream);
  }
}

void synchronize_device(c10::DeviceIndex device) {
  if (config::in_bad_fork()) {
    config::ensure_started(); // raises
  }
  for_each_stream(device, [](Stream& stream) { stream.wait(stream.submitted()); });
  for_each_stream(device, [](Stream& stream) { stream.raise_pending_error(); });
}

void stop_all_streams() noexcept {
  for (int device = 0; device < config::get().device_count; ++device) {
    for_each_stream(static_cast<c10::DeviceIndex>(device), [](Stream& stream) { stream.stop(); });
  }
}

} // namespace neuron
