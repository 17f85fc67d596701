// One host thread for a small kernel, where that can't change the result.
//
// While the caller prepares the next launches, a second thread of a kernel takes its core from it: on a host with few
// cores both lose. But some kernels add in another order on other numbers of threads, and which do is nowhere written
// down (for matrix products it depends on the shape). So each signature of an operator that is worth it is tried: the
// kernel runs on made-up values (trial.h) with all threads and with one, and only if every bit agrees it may use one.
#pragma once

#include <ATen/core/stack.h>

#include <atomic>
#include <cstdint>

namespace neuron::eager {

struct OpEntry;

// What is known about one signature; part of its record.
class ThreadChoice {
 public:
  // Finds out, when the signature has recurred and is no large one, whether the kernel with arguments like these gives
  // the same bits on one thread. Call on the thread that is to run it, outside of any KernelMemory scope. `run_ticks`:
  // how long the kernel takes.
  void try_once(OpEntry& entry, const torch::jit::Stack& arguments, uint32_t run_ticks);
  // Without a trial, for a kernel that is made so that threads change nothing.
  void accept() noexcept;
  // Whether this run should use one thread. `caller_waits`: nobody needs the other cores.
  bool prefers_one(bool caller_waits) const noexcept;
  void note(bool one_thread, uint64_t ticks) noexcept;
  // Whether the trial was passed.
  bool may_use_one() const noexcept { return verdict_.load(std::memory_order_relaxed) > 0; }

 private:
  // Positive: same bits on one thread as on that many; negative: not; 0: not tried.
  std::atomic<int32_t> verdict_{0};
  std::atomic<uint32_t> runs_{0}; // before the trial
  // How long the kernel takes, in ticks of the trace's clock; 0: not known.
  std::atomic<uint32_t> all_ticks_{0};
  std::atomic<uint32_t> one_ticks_{0};
};

// While it exists the calling thread's kernels use one thread; nothing happens with `on` false.
class OneThread {
 public:
  explicit OneThread(bool on) noexcept;
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = 0; // that the thread had before; 0: nothing was changed
  int mkl_threads_ = 0;
};

} // namespace neuron::eager
