// The trace: one fixed-size record a Launch, in a ring that is off by default. Readers: profiler, explorer, chip model.
//
// A layer that runs launches asks enabled() first (one relaxed load), and appends one record when a launch has ended.
#pragma once

#include "trace/clock.h"
#include "trace/correlation.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace neuron::trace {

struct Record {
  const char* name = "";    // op name; lives as long as the process
  uint64_t signature = 0;   // id of the signature record, 0 when there is none
  uint64_t correlation = 0; // current_correlation() at submission: which CPU op the launch belongs to
  // Appended as now_ticks(), taken as nanoseconds since the unix epoch.
  int64_t enqueued = 0; // at submission (0: the trace was off then), ...
  int64_t started = 0;  // ... before the launch ran, ...
  int64_t ended = 0;    // ... and after it
  int16_t device = 0;
  uint16_t inline_run = 0; // 1 when it ran on the caller's thread
  int32_t stream = 0;
  uint32_t thread = 0; // small number of the thread that ran it; filled in by append()
  uint32_t region = 0; // launches that ran together share a number within their stream; 0: it ran by itself
};

extern std::atomic<bool> g_enabled;
// True while at least one Reader is attached.
inline bool enabled() noexcept {
  return g_enabled.load(std::memory_order_relaxed);
}

// Lock-free; called by the thread that ran the launch. The oldest records are overwritten when the ring is full; each
// reader counts its losses.
void append(const Record& record) noexcept;

// One reader of the trace; readers do not take records from each other. The trace is on while one exists.
class Reader {
 public:
  // Sees what is appended from now on; at least `capacity` records are kept for it between two takes.
  explicit Reader(size_t capacity);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // All records since the last take, in the order in which the launches ended. One thread at a time.
  std::vector<Record> take();
  // How many records were overwritten before they could be taken, up to the last take.
  uint64_t dropped() const noexcept { return dropped_; }

 private:
  friend class Rings;
  // Where this reader stands in one ring: a larger ring replaces a smaller one while readers are attached.
  struct Position {
    class Ring* ring;
    uint64_t next;
  };
  std::vector<Position> positions_;
  uint64_t dropped_ = 0;
  TickConverter clock_;
};

} // namespace neuron::trace
