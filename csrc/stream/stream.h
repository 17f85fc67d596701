// A stream: launches run in the order in which they were submitted, on one executor thread of its own, without the GIL.
//
// A submitted launch has a sequence number. `completed() >= seq` means that it and all before it are done. Launches
// are submitted under the stream's submit lock, so that a thread holding the lock on an idle stream may run a launch
// inline, on its own thread, in the very same order.
#pragma once

#include "stream/late_error.h"
#include "stream/launch.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace neuron {

class Stream {
 public:
  Stream(c10::DeviceIndex device, c10::StreamId id, int priority);

  c10::DeviceIndex device() const noexcept { return device_; }
  c10::StreamId id() const noexcept { return id_; }
  int priority() const noexcept { return priority_; }
  c10::Stream unwrap() const noexcept;

  // Sequence number of the newest submitted launch, and of the newest completed one.
  uint64_t submitted() const noexcept { return submitted_.load(std::memory_order_acquire); }
  uint64_t completed() const noexcept { return completed_.load(std::memory_order_acquire); }
  bool idle() const noexcept { return completed() == submitted(); }
  // True while a thread sleeps until launches of this stream are done.
  bool awaited() const noexcept { return waiters_.load(std::memory_order_relaxed) > 0; }

  // ---- submitting -------------------------------------------------------------------------------------------------
  // Holds the submit lock of a stream. Re-entrant: a kernel that runs inline may submit to the stream it runs on.
  class Submission {
   public:
    explicit Submission(Stream& stream);
    ~Submission();
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;

    // True when everything submitted is done: the holder of the lock may run inline.
    bool idle() const noexcept { return stream_.idle(); }
    // Waits until everything submitted is done.
    void drain();

   private:
    friend class Stream;
    Stream& stream_;
  };

  struct Slot {
    std::unique_ptr<LaunchPayload> op;     // reused by the eager layer (always of the type that layer put there)
    std::unique_ptr<LaunchPayload> single; // any other launch; dropped after it ran
    LaunchPayload* active = nullptr;
    LaunchSource source;
    int64_t enqueue_time = 0;
  };

  // The next free slot. Waits while the ring is full (the bound on how far a caller may run ahead).
  Slot& acquire(Submission&);
  // Hands the slot to the executor; returns its sequence number.
  uint64_t publish(Submission&);

  // Submits any launch that is not a pooled ATen op. Returns its sequence number.
  uint64_t submit(std::unique_ptr<LaunchPayload> launch, LaunchSource source);
  uint64_t submit(std::function<void()> fn, LaunchSource source);

  // ---- waiting ----------------------------------------------------------------------------------------------------
  // Blocks the calling thread until launch `seq` is done. Does not raise late errors.
  void wait(uint64_t seq);
  // Waits for everything submitted so far, then raises the oldest late error, once.
  void synchronize();
  // Makes this stream wait, in order, until `other` has completed what it has submitted so far.
  void wait_stream(Stream& other);

  // The same for one launch of `other` and those before it; `name` is that of the launch that waits.
  void wait_launch(Stream& other, uint64_t seq, const char* name);

  // ---- late errors --------------------------------------------------------------------------------------------------
  // Raises the first late error that this stream's work depends on, once.
  void raise_pending_error() { late_error_.raise(); }
  bool has_pending_error() const noexcept { return late_error_.pending(); }

  // Finishes what was submitted and ends the executor thread; later launches run on their caller's thread. For exit.
  void stop() noexcept;

 private:
  friend class Submission;
  static constexpr size_t kRingSize = 1024; // launches a caller may run ahead of the executor
  // A caller that is that far ahead sleeps until this many slots are free: not to be woken for each of them.
  static constexpr size_t kRingRefill = 512;

  void executor_main();
  void ensure_executor();
  void run_slot(Slot& slot, uint64_t seq) noexcept;
  // Runs launch `seq` and what it takes along; returns the last one's number.
  uint64_t run_from(uint64_t seq) noexcept;
  struct RunTime {
    int64_t started = 0; // ticks; 0: the trace was off then
    int64_t ended = 0;
    uint32_t region = 0; // of launches that ran together
  };
  void retire(Slot& slot, const RunTime& time) noexcept;
  void finish(uint64_t seq) noexcept;

  const c10::DeviceIndex device_;
  const c10::StreamId id_;
  const int priority_;

  std::mutex submit_mutex_;
  std::atomic<std::thread::id> submit_owner_{};
  int submit_depth_ = 0;
  std::vector<Slot> ring_;
  std::thread executor_;
  std::atomic<bool> stopping_{false};

  alignas(64) std::atomic<uint64_t> submitted_{0};
  alignas(64) std::atomic<uint64_t> completed_{0};
  alignas(64) std::atomic<bool> sleeping_{false};
  std::atomic<int> waiters_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;

  LateErrorSlot late_error_;
};

// The stream whose launches the calling thread executes, or null.
const Stream* executed_stream() noexcept;
inline bool on_executor_thread() noexcept {
  return executed_stream() != nullptr;
}

// Turns an interned code object and an instruction offset into "file.py:12 in function". Set by the bindings.
using DescribePythonLine = std::string (*)(const void* code, int32_t lasti);
void set_describe_python_line(DescribePythonLine describe) noexcept;
// "aten::index.Tensor, submitted at train.py:12 in step"
std::string describe(const LaunchSource& source);

} // namespace neuron
