// A Launch is everything that runs on a NeuronCore: an ATen op, a copy, an event, a fused region, a collective.
//
// Launches live in the slots of a stream's ring and are reused, so that enqueueing one allocates nothing. What a launch
// does is in `run`; what it needs is in the payload that the layer which enqueues it keeps in the slot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace neuron {

struct LaunchPayload;
struct LaunchSource;

// The launches that are queued behind one that is about to run, the next one first.
class QueuedLaunches {
 public:
  virtual size_t size() const noexcept = 0;
  virtual LaunchPayload& operator[](size_t index) const noexcept = 0;
  virtual const LaunchSource& source(size_t index) const noexcept = 0;
  // Of the launch that is about to run.
  virtual const LaunchSource& first_source() const noexcept = 0;

 protected:
  ~QueuedLaunches() = default;
};

// What a layer above keeps in a slot between uses (for example the boxed arguments of an ATen op).
struct LaunchPayload {
  virtual ~LaunchPayload() = default;
  // Runs on the stream's executor thread (or on the caller's, inline). May throw: the stream keeps the error.
  virtual void run() = 0;
  // Runs this launch and as many as it takes along of those queued behind it, in order; returns how many it took along.
  // When it throws, these have not begun.
  virtual size_t run_with(const QueuedLaunches&) {
    run();
    return 0;
  }
  // Drops what the run needed; must not throw. Called after run, on the same thread, also when run threw.
  virtual void release() noexcept = 0;
};

// Where a launch came from, for late errors and for the trace. Plain data; the pointers live as long as the process.
struct LaunchSource {
  const char* name = "";             // "aten::add.Tensor", "copy", ...
  const void* python_code = nullptr; // interned code object and offset of the user's line, when it was captured
  int32_t python_lasti = 0;
  uint64_t signature = 0;   // id of the signature record, 0 when there is none
  uint64_t correlation = 0; // id that links the CPU op to this launch in a trace
};

} // namespace neuron
