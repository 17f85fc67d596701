#include "eager/region_launch.h"

#include "eager/cut_log.h"
#include "eager/op_launch.h"
#include "eager/tile_region.h"
#include "memory/guard_pages.h"
#include "stream/stream.h"

#include <cstring>
#include <optional>
#include <vector>

namespace neuron::eager {

namespace {

using kernels::TileDtype;

// What the region writes, as bytes in the order of its ranges.
std::vector<char> copy_written(const TileRegion& region) {
  std::vector<char> bytes;
  region.for_each_written(
      [&](const char* begin, size_t size, TileDtype) { bytes.insert(bytes.end(), begin, begin + size); });
  return bytes;
}

void restore_written(const TileRegion& region, const std::vector<char>& bytes) {
  size_t next = 0;
  region.for_each_written([&](char* begin, size_t size, TileDtype) {
    std::memcpy(begin, bytes.data() + next, size);
    next += size;
  });
}

// The bits of float32 numbers, all that are none alike: which bits stand for "not a number" is up to a kernel.
uint32_t comparable(uint32_t bits) {
  return (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc00000U : bits;
}

template <class Stored>
bool same_numbers(const char* a, const char* b, size_t bytes) {
  constexpr int kShift = 32 - 8 * static_cast<int>(sizeof(Stored));
  for (size_t at = 0; at < bytes; at += sizeof(Stored)) {
    Stored left;
    Stored right;
    std::memcpy(&left, a + at, sizeof(Stored));
    std::memcpy(&right, b + at, sizeof(Stored));
    if (comparable(uint32_t{left} << kShift) != comparable(uint32_t{right} << kShift)) {
      return false;
    }
  }
  return true;
}

bool wrote_the_same(const TileRegion& region, const std::vector<char>& bytes) {
  bool same = true;
  size_t next = 0;
  region.for_each_written([&](const char* begin, size_t size, TileDtype dtype) {
    const char* const other = bytes.data() + next;
    same = same && (dtype == TileDtype::Float32 ? same_numbers<uint32_t>(begin, other, size)
                                                : same_numbers<uint16_t>(begin, other, size));
    next += size;
  });
  return same;
}

// Runs the region and each launch by itself; where they differ the region's operators run by themselves from now on.
void verify(TileRegion& region, const std::vector<OpLaunch*>& launches, bool caller_waits) {
  const auto before = copy_written(region);
  region.run(caller_waits);
  const auto by_region = copy_written(region);
  restore_written(region, before);
  for (OpLaunch* launch : launches) {
    launch->run();
  }
  adaptive_counters().verified.fetch_add(1, std::memory_order_relaxed);
  if (!wrote_the_same(region, by_region)) {
    adaptive_counters().mismatches.fetch_add(1, std::memory_order_relaxed);
    for (const OpLaunch* launch : launches) {
      launch->record()->tiles.forbid();
    }
  }
}

} // namespace

size_t run_region(OpLaunch& first, const QueuedLaunches& queued) {
  memory::DeviceAccess access;
  TileRegion region;
  std::vector<OpLaunch*> launches;
  std::vector<TileStep> steps;
  const auto add = [&](OpLaunch* launch) -> std::optional<Cut> {
    if (launch == nullptr) {
      return Cut::NoOperator;
    }
    if (!launch->for_tiles()) {
      return Cut::OtherKind;
    }
    steps.clear();
    if (!launch->append_tile_steps(steps)) {
      return Cut::Arguments;
    }
    const auto cut = region.add(steps);
    if (!cut) {
      launches.push_back(launch);
    }
    return cut;
  };
  auto cut = add(&first);
  while (!cut) {
    const size_t next = launches.size() - 1;
    cut = next < queued.size() ? add(dynamic_cast<OpLaunch*>(&queued[next])) : Cut::QueueEnd;
  }
  const size_t concerned = launches.size() - (is_about_next(*cut) ? 0 : 1); // 0 for the first, then those behind it
  adaptive_counters().count(*cut);
  log_cut(*cut, concerned == 0 ? queued.first_source() : queued.source(concerned - 1));
  if (region.launches() == 0 || (region.launches() == 1 && region.lanes() == 1)) {
    first.run();
    return 0;
  }
  const Stream* const stream = executed_stream();
  const bool caller_waits = stream != nullptr && stream->awaited();
  if (eager_mode() == EagerMode::Verify) {
    verify(region, launches, caller_waits);
  } else {
    region.run(caller_waits);
  }
  adaptive_counters().regions.fetch_add(1, std::memory_order_relaxed);
  adaptive_counters().launches_in_regions.fetch_add(launches.size(), std::memory_order_relaxed);
  return launches.size() - 1;
}

} // namespace neuron::eager
