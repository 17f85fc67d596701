// Settings of the host that PyTorch keeps for each thread, and on which results can depend: how many threads kernels
// use, and whether they flush denormal numbers. The executors and autograd's threads, which run the kernels of others,
// have to follow.
#pragma once

#include <atomic>

namespace neuron::eager {

// Called with what this thread set. The count of the main thread, `for_all`, is that of every thread that sets none of
// its own; that of another thread (a DataLoader's, which pins memory with one) counts for what this thread launches.
// `before` is what this thread had.
void set_thread_count(int count, bool for_all, int before) noexcept;
// For all threads, from now on.
void set_flush_denormal(bool enabled) noexcept;

extern std::atomic<int> g_thread_settings;      // grows with every change
inline thread_local int t_own_thread_count = 0; // 0: this thread set none
struct AppliedSettings {
  int version = 0;
  int own_thread_count = 0;
};
inline thread_local AppliedSettings t_applied_settings;
void apply_thread_settings(int version, int own_thread_count);

// Before a kernel; the count is that of the thread that launched it.
inline void follow_thread_settings(int own_thread_count = t_own_thread_count) {
  const int version = g_thread_settings.load(std::memory_order_acquire);
  const AppliedSettings& applied = t_applied_settings;
  if (version != applied.version || own_thread_count != applied.own_thread_count) [[unlikely]] {
    apply_thread_settings(version, own_thread_count);
  }
}

} // namespace neuron::eager
