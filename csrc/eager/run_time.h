// How long a kernel takes, as its runs tell.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace neuron::eager {

// Takes one more run into `known`, in ticks of the trace's clock; 0 means that nothing is known yet. A run is wall
// time, so one that was preempted says nothing about the kernel: quick to go down, slow and bounded to go up.
inline void note_run_time(std::atomic<uint32_t>& known, uint64_t ticks) noexcept {
  const uint64_t old = known.load(std::memory_order_relaxed);
  uint64_t now = std::clamp<uint64_t>(ticks, 1, UINT32_MAX);
  if (old != 0) {
    now = now < old ? (old + now) / 2 : (old * 15 + std::min(now, old * 4)) / 16;
  }
  known.store(static_cast<uint32_t>(now), std::memory_order_relaxed);
}

} // namespace neuron::eager
