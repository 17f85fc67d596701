// A run of element-wise launches, computed together: tile after tile goes through all of them while it is in the cache.
//
// The launches of a region may read and write the same tensors, as long as these are the very same memory: then the
// n-th numbers of all of them depend on n-th numbers only, and the order between tiles does not matter. Lists give a
// region several lanes, one a tensor, which must not touch each other's memory.
#pragma once

#include "eager/eager_mode.h"
#include "eager/tile_form.h"

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

namespace neuron::eager {

class TileRegion {
 public:
  // Adds a launch's steps, one a lane. With a reason: they do not fit here, and no more may be added.
  std::optional<Cut> add(const std::vector<TileStep>& steps);
  size_t launches() const noexcept { return launches_; }
  size_t lanes() const noexcept { return lanes_; }
  // Calls visit(begin, bytes, dtype) for the memory that is written.
  template <class Visit>
  void for_each_written(const Visit& visit) const {
    for (const auto& [begin, range] : ranges_) {
      if (range.written) {
        visit(const_cast<char*>(begin), static_cast<size_t>(range.end - begin), range.dtype);
      }
    }
  }
  // Computes all launches. `caller_waits`: nobody needs the other cores.
  void run(bool caller_waits);

 private:
  // Memory that steps use.
  struct Range {
    const char* end;
    kernels::TileDtype dtype;
    size_t lane;
    bool written;
  };

  bool use(const void* begin, const TileStep& step, size_t lane, bool writes);
  bool writes_number(const void* number) const;
  void use_scratch(size_t lane);
  int64_t cost() const noexcept;
  void run_tiles(int64_t begin, int64_t end) const;

  size_t launches_ = 0;
  size_t lanes_ = 0;
  std::vector<TileStep> steps_; // of launch l and lane i: l * lanes_ + i
  std::vector<int64_t> tiles_;  // how many tiles the lanes before this one have
  std::map<const char*, Range> ranges_;
};

} // namespace neuron::eager
