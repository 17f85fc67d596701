// Counters of the caching allocator. Plain numbers under the allocator's lock; PyTorch's form is made when read.
//
// allocated: blocks that cannot be handed out: held by an allocation, or freed and awaiting another stream.
// active:    blocks held by an allocation. So reserved >= allocated >= active at every moment, and the three agree with
//            torch.cuda's as long as no freed block awaits a stream (after a synchronisation none does).
#pragma once

#include "memory/caching_allocator_sizes.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>

namespace neuron::memory {

// One quantity: what it is now, its highest value, and everything ever added. What was ever taken away follows.
class Tally {
 public:
  void add(Pool pool, int64_t amount) noexcept {
    Values& values = pools_[static_cast<int>(pool)];
    values.current += amount;
    values.added += amount;
    if (values.current > values.peak) {
      values.peak = values.current;
    }
    int64_t both = pools_[0].current + pools_[1].current;
    if (both > peak_of_both_) {
      peak_of_both_ = both;
    }
  }
  void subtract(Pool pool, int64_t amount) noexcept { pools_[static_cast<int>(pool)].current -= amount; }

  int64_t current() const noexcept { return pools_[0].current + pools_[1].current; }
  int64_t peak() const noexcept { return peak_of_both_; }
  int64_t added() const noexcept { return pools_[0].added + pools_[1].added; }
  int64_t removed() const noexcept { return added() - current(); }

  void reset_accumulated() noexcept;
  void reset_peak() noexcept;
  c10::CachingAllocator::StatArray to_stat_array() const;

 private:
  struct Values {
    int64_t current = 0;
    int64_t peak = 0;
    int64_t added = 0;
    int64_t added_at_reset = 0;
    int64_t removed_at_reset = 0;
  };
  Values pools_[kPoolCount];
  int64_t peak_of_both_ = 0;
};

struct Statistics {
  Tally allocation;
  Tally allocated_bytes;
  Tally active;
  Tally active_bytes;
  Tally requested_bytes;
  Tally inactive_split;
  Tally inactive_split_bytes;
  Tally segment;
  Tally reserved_bytes;
  Tally oversize_allocations; // of the large pool only
  Tally oversize_segments;

  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;
  int64_t num_device_free = 0;

  void reset_accumulated() noexcept;
  void reset_peak() noexcept;
  c10::CachingDeviceAllocator::DeviceStats to_device_stats(size_t max_split_size) const;
};

} // namespace neuron::memory
