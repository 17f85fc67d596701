// How the executors run what is queued; process-wide.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace neuron::eager {

enum class EagerMode : uint8_t {
  Strict,   // each launch by itself
  Adaptive, // runs of element-wise launches together, tile by tile; see tile_region.h
  Verify    // as Adaptive, and each region is compared with what strict execution gives
};

EagerMode eager_mode() noexcept;
void set_eager_mode(EagerMode mode) noexcept;

// Why a region ends.
enum class Cut : uint8_t {
  QueueEnd,     // nothing is queued behind it
  NoOperator,   // the next launch is a copy, an event, a compiled graph, ...
  OtherKind,    // the next launch is not an element-wise operator that regions can hold
  Arguments,    // the next operator's arguments are nothing for tiles, or tiles would give other bits
  OtherSizes,   // the next launch works on tensors of other sizes
  SharedMemory, // the next launch uses memory that the region writes in another way than number by number
  Length,       // it has as many launches as a region may have
};
constexpr size_t kCuts = 7;
const char* name_of(Cut cut) noexcept;

struct AdaptiveCounters {
  std::atomic<uint64_t> regions{0};
  std::atomic<uint64_t> launches_in_regions{0};
  std::atomic<uint64_t> verified{0};
  std::atomic<uint64_t> mismatches{0};
  std::array<std::atomic<uint64_t>, kCuts> cuts{};

  void count(Cut cut) noexcept { cuts[static_cast<size_t>(cut)].fetch_add(1, std::memory_order_relaxed); }
  void reset() noexcept;
};
AdaptiveCounters& adaptive_counters() noexcept;

} // namespace neuron::eager
