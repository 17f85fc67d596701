#include "eager/thread_count.h"

#include <ATen/Parallel.h>

namespace neuron::eager {

std::atomic<int> g_thread_count{0};

void set_thread_count(int count, bool for_all, int before) noexcept {
  if (for_all) {
    g_thread_count.store(count, std::memory_order_relaxed);
    return;
  }
  t_own_thread_count = count;
  int never_set = 0; // the others keep the process's default, which is what this thread had; PyTorch forgets it now
  g_thread_count.compare_exchange_strong(never_set, before, std::memory_order_relaxed);
}

void apply_thread_count(int count) {
  t_applied_thread_count = count;
  if (at::get_num_threads() != count) {
    at::set_num_threads(count);
  }
}

} // namespace neuron::eager
