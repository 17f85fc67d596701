#include "eager/tile_region.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

namespace neuron::eager {

namespace {

// Numbers of a tile: a few tensors' worth of them lie in a core's second cache, and the cost of a step's call vanishes.
constexpr int64_t kTileNumbers = 2 * 1024;
constexpr int64_t kSlotBytes = kTileNumbers * static_cast<int64_t>(sizeof(float));
constexpr int8_t kSlots = 8; // of scratch memory for each thread
constexpr size_t kMaxLaunches = 128;
// Of a smaller tensor the caches hold all there is.
constexpr int64_t kWorthScratch = 128 * 1024;
constexpr size_t kManyLanes = SIZE_MAX; // which only read it
// Numbers times launches that are worth more threads: when the caller sleeps, and when it works and needs a core.
constexpr int64_t kWorthThreads = 512 * 1024;
constexpr int64_t kWorthCallersCore = 8 * 1024 * 1024;

int64_t tiles_of(int64_t count) {
  return (count + kTileNumbers - 1) / kTileNumbers;
}

// Where the numbers of one tile are.
char* place(const void* memory, int64_t offset, int8_t slot, char* scratch) {
  return slot == TileStep::kMemory ? static_cast<char*>(const_cast<void*>(memory)) + offset
                                   : scratch + slot * kSlotBytes;
}

void run_tile(const TileStep& step, int64_t begin, int64_t count, char* scratch) {
  const int64_t offset = begin * (step.bytes / step.count);
  kernels::TileArguments arguments = step.arguments;
  arguments.result = place(arguments.result, offset, step.result_slot, scratch);
  arguments.x = place(arguments.x, offset, step.x_slot, scratch);
  if (step.has_y) {
    arguments.y = place(arguments.y, offset, step.y_slot, scratch);
  }
  if (step.has_z) {
    arguments.z = place(arguments.z, offset, step.z_slot, scratch);
  }
  step.function(arguments, count);
}

char* thread_scratch() {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local const std::unique_ptr<void, Free> memory(std::aligned_alloc(64, kSlots * kSlotBytes));
  return static_cast<char*>(memory.get());
}

} // namespace

std::optional<Cut> TileRegion::add(const std::vector<TileStep>& steps) {
  if (launches_ == kMaxLaunches) {
    return Cut::Length;
  }
  if (launches_ > 0 && steps.size() != lanes_) {
    return Cut::OtherSizes;
  }
  if (launches_ == 0) {
    lanes_ = steps.size();
    tiles_.assign(1, 0);
    for (const TileStep& step : steps) {
      tiles_.push_back(tiles_.back() + tiles_of(step.count));
    }
  }
  for (size_t lane = 0; lane < lanes_; ++lane) {
    const TileStep& step = steps[lane];
    if (launches_ > 0 && step.count != steps_[lane].count) {
      return Cut::OtherSizes;
    }
    const bool usable = !writes_number(step.number_from) && use(step.arguments.x, step, lane, false) &&
                        (!step.has_y || use(step.arguments.y, step, lane, false)) &&
                        (!step.has_z || use(step.arguments.z, step, lane, false)) &&
                        use(step.arguments.result, step, lane, true);
    if (!usable) {
      return Cut::SharedMemory;
    }
  }
  steps_.insert(steps_.end(), steps.begin(), steps.end());
  ++launches_;
  return std::nullopt;
}

// Whether the memory is the same as, or apart from, all that other steps write, and what this step writes is apart from
// all that other lanes use.
bool TileRegion::use(const void* begin, const TileStep& step, size_t lane, bool writes) {
  const auto* const first = static_cast<const char*>(begin);
  const char* const end = first + step.bytes;
  auto next = ranges_.lower_bound(first);
  if (next != ranges_.end() && next->first == first && next->second.end == end) {
    Range& known = next->second;
    if (known.lane != lane && (known.written || writes)) {
      return false;
    }
    known.lane = known.lane == lane ? lane : kManyLanes;
    known.written = known.written || writes;
    return true;
  }
  // Ranges in the map do not overlap, so only the neighbours can.
  if (next != ranges_.end() && next->first < end) {
    return false;
  }
  if (next != ranges_.begin() && std::prev(next)->second.end > first) {
    return false;
  }
  ranges_.emplace_hint(next, first, Range{end, step.dtype, lane, writes});
  return true;
}

// Whether the tensor that a step's number was read from is about to get another value.
bool TileRegion::writes_number(const void* number) const {
  auto range = ranges_.upper_bound(static_cast<const char*>(number));
  if (number == nullptr || range == ranges_.begin()) {
    return false;
  }
  --range;
  return range->second.written && static_cast<const char*>(number) < range->second.end;
}

int64_t TileRegion::cost() const noexcept {
  int64_t numbers = 0;
  for (size_t lane = 0; lane < lanes_; ++lane) {
    numbers += steps_[lane].count;
  }
  return numbers * static_cast<int64_t>(launches_);
}

// What a later launch of the region writes over need not reach memory: scratch memory holds it until then. Temporary
// tensors are such a case, because the allocator gives the memory of one to the next.
void TileRegion::use_scratch(size_t lane) {
  struct Value {
    size_t last_writer = 0;
    int8_t slot = TileStep::kMemory; // of the newest value
  };
  std::map<const void*, Value> values;
  for (size_t launch = 0; launch < launches_; ++launch) {
    values[steps_[launch * lanes_ + lane].arguments.result].last_writer = launch;
  }
  if (values.size() == launches_) {
    return; // nothing is written twice
  }
  std::vector<int8_t> free;
  for (int8_t slot = kSlots; slot-- > 0;) {
    free.push_back(slot);
  }
  const auto slot_of = [&](const void* memory) {
    const auto value = values.find(memory);
    return value == values.end() ? TileStep::kMemory : value->second.slot;
  };
  for (size_t launch = 0; launch < launches_; ++launch) {
    TileStep& step = steps_[launch * lanes_ + lane];
    step.x_slot = slot_of(step.arguments.x);
    step.y_slot = step.has_y ? slot_of(step.arguments.y) : TileStep::kMemory;
    step.z_slot = step.has_z ? slot_of(step.arguments.z) : TileStep::kMemory;
    Value& written = values[step.arguments.result];
    if (written.slot != TileStep::kMemory) {
      free.push_back(std::exchange(written.slot, TileStep::kMemory));
    }
    if (written.last_writer != launch && !free.empty()) {
      written.slot = free.back();
      free.pop_back();
    }
    step.result_slot = written.slot;
  }
}

void TileRegion::run(bool caller_waits) {
  for (size_t lane = 0; lane < lanes_; ++lane) {
    if (launches_ > 1 && steps_[lane].bytes >= kWorthScratch) {
      use_scratch(lane);
    }
  }
  const int64_t tiles = tiles_.back();
  const bool one_thread = cost() < (caller_waits ? kWorthThreads : kWorthCallersCore);
  if (one_thread) {
    run_tiles(0, tiles);
  } else {
    at::parallel_for(0, tiles, 1, [this](int64_t begin, int64_t end) { run_tiles(begin, end); });
  }
}

void TileRegion::run_tiles(int64_t begin, int64_t end) const {
  char* const scratch = thread_scratch();
  auto lane = static_cast<size_t>(std::upper_bound(tiles_.begin(), tiles_.end(), begin) - tiles_.begin() - 1);
  for (int64_t tile = begin; tile < end; ++tile) {
    while (tile >= tiles_[lane + 1]) {
      ++lane;
    }
    const int64_t first = (tile - tiles_[lane]) * kTileNumbers;
    const int64_t count = std::min(kTileNumbers, steps_[lane].count - first);
    for (size_t launch = 0; launch < launches_; ++launch) {
      run_tile(steps_[launch * lanes_ + lane], first, count, scratch);
    }
  }
}

} // namespace neuron::eager
