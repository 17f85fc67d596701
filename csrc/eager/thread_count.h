// How many threads host kernels use. The count is a property of each thread, but the user sets it on one
// (torch.set_num_threads), and results can depend on it: executors and autograd's threads have to follow.
#pragma once

#include <atomic>

namespace neuron::eager {

// Called with what the user set; every thread takes it over before its next kernel.
void set_thread_count(int count) noexcept;

extern std::atomic<int> g_thread_count; // 0: never set, every thread has the process's default
void apply_thread_count(int count);
inline thread_local int t_thread_count = 0;

inline void follow_thread_count() {
  const int count = g_thread_count.load(std::memory_order_relaxed);
  if (count != t_thread_count) [[unlikely]] {
    apply_thread_count(count);
  }
}

} // namespace neuron::eager
