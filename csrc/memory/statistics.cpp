#include "memory/statistics.h"

#include <algorithm>
#include <initializer_list>

namespace neuron::memory {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

namespace {

// Every tally of the statistics, so that a new one cannot be forgotten in a reset.
template <typename Visit>
void for_each_tally(Statistics& s, Visit visit) {
  for (Tally* tally :
       {&s.allocation, &s.allocated_bytes, &s.active, &s.active_bytes, &s.requested_bytes, &s.inactive_split,
        &s.inactive_split_bytes, &s.segment, &s.reserved_bytes, &s.oversize_allocations, &s.oversize_segments}) {
    visit(*tally);
  }
}

} // namespace

void Tally::reset_accumulated() noexcept {
  for (Values& values : pools_) {
    values.added_at_reset = values.added;
    values.removed_at_reset = values.added - values.current;
  }
}

void Tally::reset_peak() noexcept {
  for (Values& values : pools_) {
    values.peak = values.current;
  }
  peak_of_both_ = current();
}

StatArray Tally::to_stat_array() const {
  StatArray result;
  Stat& all = result[static_cast<size_t>(StatType::AGGREGATE)];
  for (Pool pool : {Pool::kSmall, Pool::kLarge}) {
    const Values& values = pools_[static_cast<int>(pool)];
    Stat& stat = result[static_cast<size_t>(pool == Pool::kSmall ? StatType::SMALL_POOL : StatType::LARGE_POOL)];
    stat.current = values.current;
    stat.peak = values.peak;
    stat.allocated = values.added - values.added_at_reset;
    stat.freed = values.added - values.current - values.removed_at_reset;
    all.current += stat.current;
    all.allocated += stat.allocated;
    all.freed += stat.freed;
  }
  all.peak = peak_of_both_;
  return result;
}

void Statistics::reset_accumulated() noexcept {
  for_each_tally(*this, [](Tally& tally) { tally.reset_accumulated(); });
  num_alloc_retries = 0;
  num_ooms = 0;
  num_sync_all_streams = 0;
  num_device_alloc = 0;
  num_device_free = 0;
}

void Statistics::reset_peak() noexcept {
  for_each_tally(*this, [](Tally& tally) { tally.reset_peak(); });
}

c10::CachingDeviceAllocator::DeviceStats Statistics::to_device_stats(size_t max_split_size) const {
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocation = allocation.to_stat_array();
  stats.segment = segment.to_stat_array();
  stats.active = active.to_stat_array();
  stats.inactive_split = inactive_split.to_stat_array();
  stats.allocated_bytes = allocated_bytes.to_stat_array();
  stats.reserved_bytes = reserved_bytes.to_stat_array();
  stats.active_bytes = active_bytes.to_stat_array();
  stats.inactive_split_bytes = inactive_split_bytes.to_stat_array();
  stats.requested_bytes = requested_bytes.to_stat_array();
  stats.oversize_allocations = oversize_allocations.to_stat_array()[static_cast<size_t>(StatType::AGGREGATE)];
  stats.oversize_segments = oversize_segments.to_stat_array()[static_cast<size_t>(StatType::AGGREGATE)];
  stats.num_alloc_retries = num_alloc_retries;
  stats.num_ooms = num_ooms;
  stats.num_sync_all_streams = num_sync_all_streams;
  stats.num_device_alloc = num_device_alloc;
  stats.num_device_free = num_device_free;
  stats.max_split_size = static_cast<int64_t>(max_split_size);
  return stats;
}

} // namespace neuron::memory
