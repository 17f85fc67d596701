// Short busy waits before a thread goes to sleep: waking a sleeping thread costs more than most launches take.
#pragma once

#include <chrono>
#include <thread>

namespace neuron {

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done()` is true or `limit` has passed; returns done(). On a single core spinning can only lose.
template <class Done>
bool spin_until(const Done& done, std::chrono::nanoseconds limit) {
  static const bool several_cores = std::thread::hardware_concurrency() > 1;
  if (!several_cores) {
    return done();
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) {
        return true;
      }
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

} // namespace neuron
