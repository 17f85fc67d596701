#include "eager/thread_count.h"

#include <ATen/Parallel.h>

namespace neuron::eager {

std::atomic<int> g_thread_count{0};

void set_thread_count(int count) noexcept {
  g_thread_count.store(count, std::memory_order_relaxed);
}

void apply_thread_count(int count) {
  t_thread_count = count;
  if (count > 0 && at::get_num_threads() != count) {
    at::set_num_threads(count);
  }
}

} // namespace neuron::eager
