#include "stream/event.h"

#include "stream/stream_pool.h"

#include <c10/util/Exception.h>

#include <chrono>

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
  recording_ = std::move(recording);
}

void Event::block(Stream& stream) const {
  if (recording_ != nullptr) {
    stream.wait_launch(*recording_->stream, recording_->seq, "neuron::event_wait");
  }
}

bool Event::query() const {
  return recording_ == nullptr || recording_->stream->completed() >= recording_->seq;
}

void Event::synchronize() const {
  if (recording_ != nullptr) {
    recording_->stream->wait(recording_->seq);
    recording_->stream->raise_pending_error();
  }
}

double Event::elapsed_ms(const Event& end) const {
  TORCH_CHECK_VALUE(
      enable_timing_ && end.enable_timing_, "Both events must be created with argument 'enable_timing=True'.");
  TORCH_CHECK_VALUE(recorded() && end.recorded(), "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK_VALUE(query() && end.query(), "Both events must be completed before calculating elapsed time.");
  return static_cast<double>(
             end.recording_->reached_ns.load(std::memory_order_acquire) -
             recording_->reached_ns.load(std::memory_order_acquire)) /
         1e6;
}

} // namespace neuron
