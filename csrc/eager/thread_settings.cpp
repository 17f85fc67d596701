#include "eager/thread_settings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

namespace neuron::eager {

namespace {

constexpr int kNeverSet = -1;

std::atomic<int> g_thread_count{0}; // 0: never set, every thread has the process's default
std::atomic<int> g_flush_denormal{kNeverSet};

} // namespace

std::atomic<int> g_thread_settings{0};

void set_thread_count(int count, bool for_all, int before) noexcept {
  if (for_all) {
    g_thread_count.store(count, std::memory_order_relaxed);
  } else {
    t_own_thread_count = count;
    int never_set = 0; // the others keep the process's default, which is what this thread had; PyTorch forgets it now
    g_thread_count.compare_exchange_strong(never_set, before, std::memory_order_relaxed);
  }
  g_thread_settings.fetch_add(1, std::memory_order_release);
}

void set_flush_denormal(bool enabled) noexcept {
  g_flush_denormal.store(enabled ? 1 : 0, std::memory_order_relaxed);
  g_thread_settings.fetch_add(1, std::memory_order_release);
}

void apply_thread_settings(int version, int own_thread_count) {
  t_applied_settings = {version, own_thread_count};
  const int count = own_thread_count != 0 ? own_thread_count : g_thread_count.load(std::memory_order_relaxed);
  if (count != 0 && at::get_num_threads() != count) {
    at::set_num_threads(count);
  }
  const int flush = g_flush_denormal.load(std::memory_order_relaxed);
  if (flush != kNeverSet) {
    at::globalContext().setFlushDenormal(flush != 0);
  }
}

} // namespace neuron::eager
