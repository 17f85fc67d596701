// A lock for sections of a few dozen instructions: one atomic exchange to take, one store to give back.
#pragma once

#include <sched.h>
#include <atomic>
#include <ctime>

namespace neuron::memory {

class SpinLock {
 public:
  void lock() noexcept {
    if (!locked_.exchange(true, std::memory_order_acquire)) [[likely]] {
      return;
    }
    wait_and_lock();
  }
  bool try_lock() noexcept { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 128;       // about the length of a usual section
  static constexpr int kYields = 32;       // then the holder may have been preempted
  static constexpr long kSleepNs = 20'000; // then it is in a system call (a segment is being mapped)

  [[gnu::noinline]] void wait_and_lock() noexcept {
    for (int attempt = 0;; ++attempt) {
      if (!locked_.load(std::memory_order_relaxed) && try_lock()) {
        return;
      }
      if (attempt < kSpins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
      } else if (attempt < kSpins + kYields) {
        sched_yield();
      } else {
        timespec pause{0, kSleepNs};
        nanosleep(&pause, nullptr);
      }
    }
  }

  std::atomic<bool> locked_{false};
};

} // namespace neuron::memory
