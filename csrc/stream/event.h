// An event marks a position in a stream: streams and threads can wait for it, and two of them measure time.
#pragma once

#include "stream/stream.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace neuron {

class Event {
 public:
  explicit Event(bool enable_timing) : enable_timing_(enable_timing) {}

  // Submits a launch to `stream` that completes the event; recording again moves it.
  void record(Stream& stream);
  // Makes `stream` wait, in order, for the newest recording. Nothing when never recorded.
  void block(Stream& stream) const;
  // True when never recorded or when the newest recording is done.
  bool query() const;
  // Blocks the calling thread until the newest recording is done.
  void synchronize() const;
  // Milliseconds between the moments at which the two events were reached. Both must be timed, recorded and done.
  double elapsed_ms(const Event& end) const;

  bool timing_enabled() const { return enable_timing_; }
  bool recorded() const { return newest() != nullptr; }

 private:
  struct Recording {
    Stream* stream = nullptr;
    uint64_t seq = 0;
    std::atomic<int64_t> reached_ns{0};
  };
  std::shared_ptr<const Recording> newest() const;

  const bool enable_timing_;
  // One thread may wait for the event while another records it again; neither holds the GIL.
  mutable std::mutex mutex_;
  std::shared_ptr<const Recording> recording_;
};

} // namespace neuron
