#include "stream/event.h"

#include "stream/stream_pool.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <utility>

namespace neuron {

namespace {

int64_t steady_now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

void Event::record(Stream& stream) {
  auto recording = std::make_shared<Recording>();
  recording->stream = &stream;
  Stream::Submission submission(stream);
  if (submission.idle()) {
    recording->seq = stream.submitted();
    recording->reached_ns.store(steady_now_ns(), std::memory_order_release);
  } else if (!enable_timing_) {
    // A position in the stream is enough; only a time needs a launch of its own.
    recording->seq = stream.submitted();
  } else {
    LaunchSource source;
    source.name = "neuron::event_record";
    recording->seq =
        stream.submit([recording] { recording->reached_ns.store(steady_now_ns(), std::memory_order_release); }, source);
  }
  std::shared_ptr<const Recording> replaced = std::move(recording);
  std::lock_guard<std::mutex> lock(mutex_);
  recording_.swap(replaced);
}

std::shared_ptr<const Event::Recording> Event::newest() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return recording_;
}

void Event::block(Stream& stream) const {
  if (const auto recording = newest()) {
    stream.wait_launch(*recording->stream, recording->seq, "neuron::event_wait");
  }
}

bool Event::query() const {
  const auto recording = newest();
  return recording == nullptr || recording->stream->completed() >= recording->seq;
}

void Event::synchronize() const {
  if (const auto recording = newest()) {
    recording->stream->wait(recording->seq);
    recording->stream->raise_pending_error();
  }
}

double Event::elapsed_ms(const Event& end) const {
  TORCH_CHECK_VALUE(
      enable_timing_ && end.enable_timing_, "Both events must be created with argument 'enable_timing=True'.");
  const auto from = newest();
  const auto to = end.newest();
  TORCH_CHECK_VALUE(from != nullptr && to != nullptr, "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK_VALUE(
      from->stream->completed() >= from->seq && to->stream->completed() >= to->seq,
      "Both events must be completed before calculating elapsed time.");
  const int64_t nanoseconds =
      to->reached_ns.load(std::memory_order_acquire) - from->reached_ns.load(std::memory_order_acquire);
  return static_cast<double>(nanoseconds) / 1e6;
}

} // namespace neuron
