// Tuning of the caching allocator from the environment.
//
// TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG takes `key=value,...` and goes before PYTORCH_ALLOC_CONF, whose common options
// (max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold, roundup_power2_divisions,
// large_segment_size_mb) apply where it says nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace neuron::memory {

struct AllocatorConfig {
  size_t small_segment_bytes = 0;          // kSmallSegmentBytes
  size_t large_segment_bytes = 0;          // kLargeSegmentBytes: shared by requests below min_exact_segment_bytes
  size_t min_exact_segment_bytes = 0;      // kMinExactSegmentBytes: larger requests get a segment of their own size
  size_t max_split_bytes = 0;              // kMaxSplitSizeBytes: larger blocks are never cut
  size_t max_non_split_rounding_bytes = 0; // kMaxNonSplitRoundingBytes: how much of such a block may be wasted
  double garbage_collection_threshold = 0; // kGarbageCollectionThreshold: share of the limit; 0 is off
};

// PyTorch's settings as they are now, with the variable on top. Raises c10::ValueError for a bad value.
AllocatorConfig read_allocator_config();
// `key=value,...` on top of `defaults`. Unknown keys warn; bad values raise c10::ValueError.
AllocatorConfig parse_allocator_config(const std::string& text, AllocatorConfig defaults);

// PYTORCH_ALLOC_CONF's roundup_power2_divisions, and whether the newest read_allocator_config found it set.
extern std::atomic<bool> power2_divisions_set;
size_t round_by_power2_divisions(size_t nbytes);

} // namespace neuron::memory
