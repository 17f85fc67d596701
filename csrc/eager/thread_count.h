// How many threads host kernels use. To PyTorch the count is a property of each thread, and results can depend on it:
// the executors and autograd's threads, which run the kernels of others, have to follow.
#pragma once

#include <atomic>

namespace neuron::eager {

// Called with what this thread set. The count of the main thread, `for_all`, is that of every thread that sets none of
// its own; that of another thread (a DataLoader's, which pins memory with one) counts for what this thread launches.
// `before` is what this thread had.
void set_thread_count(int count, bool for_all, int before) noexcept;

extern std::atomic<int> g_thread_count;         // 0: never set, every thread has the process's default
inline thread_local int t_own_thread_count = 0; // 0: this thread set none
inline thread_local int t_applied_thread_count = 0;
void apply_thread_count(int count);

// Before a kernel; `own` is that of the thread that launched it.
inline void follow_thread_count(int own = t_own_thread_count) {
  const int count = own != 0 ? own : g_thread_count.load(std::memory_order_relaxed);
  if (count != t_applied_thread_count) [[unlikely]] {
    apply_thread_count(count);
  }
}

} // namespace neuron::eager
