#include "memory/caching_allocator_config.h"

#include "memory/caching_allocator_sizes.h"
#include "memory/segment.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace neuron::memory {

std::atomic<bool> power2_divisions_set{false};

namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr const char* kVariable = "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG";

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  return text;
}

size_t parse_bytes(std::string_view key, std::string_view value) {
  size_t bytes = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  TORCH_CHECK_VALUE(
      error == std::errc() && end == value.data() + value.size() && bytes > 0, kVariable, ": ", key,
      " must be a positive number of bytes, but is '", value, "'");
  return bytes;
}

double parse_share(std::string_view key, std::string_view value) {
  std::string text(value);
  char* end = nullptr;
  double share = std::strtod(text.c_str(), &end);
  TORCH_CHECK_VALUE(
      !text.empty() && *end == '\0' && share >= 0 && share < 1, kVariable, ": ", key,
      " must be a number in [0, 1), but is '", value, "'");
  return share;
}

} // namespace

AllocatorConfig parse_allocator_config(const std::string& text, AllocatorConfig config) {
  std::string_view rest = text;
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string_view item = trim(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (item.empty()) {
      continue;
    }
    size_t equals = item.find('=');
    TORCH_CHECK_VALUE(
        equals != std::string_view::npos, kVariable, " takes key=value pairs separated by commas, but '", item,
        "' has no '='");
    std::string_view key = trim(item.substr(0, equals));
    std::string_view value = trim(item.substr(equals + 1));
    if (key == "kMaxSplitSizeBytes") {
      config.max_split_bytes = parse_bytes(key, value);
    } else if (key == "kMaxNonSplitRoundingBytes") {
      config.max_non_split_rounding_bytes = parse_bytes(key, value);
    } else if (key == "kSmallSegmentBytes") {
      config.small_segment_bytes = whole_segments(parse_bytes(key, value));
    } else if (key == "kLargeSegmentBytes") {
      config.large_segment_bytes = whole_segments(parse_bytes(key, value));
    } else if (key == "kMinExactSegmentBytes") {
      config.min_exact_segment_bytes = parse_bytes(key, value);
    } else if (key == "kGarbageCollectionThreshold") {
      config.garbage_collection_threshold = parse_share(key, value);
    } else {
      TORCH_WARN(
          kVariable, ": '", key,
          "' is not known and has no effect; known are kMaxSplitSizeBytes, "
          "kMaxNonSplitRoundingBytes, kSmallSegmentBytes, kLargeSegmentBytes, kMinExactSegmentBytes, "
          "kGarbageCollectionThreshold");
    }
  }
  // A segment must hold the largest request that shares it.
  if (config.min_exact_segment_bytes > config.large_segment_bytes) {
    config.min_exact_segment_bytes = config.large_segment_bytes;
  }
  return config;
}

AllocatorConfig read_allocator_config() {
  AllocatorConfig config;
  config.small_segment_bytes = c10::CachingAllocator::kSmallBuffer;
  config.large_segment_bytes = whole_segments(AcceleratorAllocatorConfig::large_segment_size());
  config.min_exact_segment_bytes = c10::CachingAllocator::kMinLargeAlloc;
  config.max_split_bytes = AcceleratorAllocatorConfig::max_split_size();
  config.max_non_split_rounding_bytes = AcceleratorAllocatorConfig::max_non_split_rounding_size();
  config.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  bool divisions_set = false;
  for (size_t divisions : AcceleratorAllocatorConfig::roundup_power2_divisions()) {
    divisions_set = divisions_set || divisions > 1;
  }
  power2_divisions_set.store(divisions_set, std::memory_order_relaxed);
  static const std::string variable = [] {
    const char* value = std::getenv(kVariable);
    return std::string(value == nullptr ? "" : value);
  }();
  return parse_allocator_config(variable, config);
}

size_t round_by_power2_divisions(size_t nbytes) {
  size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(nbytes);
  if (divisions <= 1 || nbytes <= kMinBlockBytes) {
    return nbytes;
  }
  size_t below = std::bit_floor(nbytes);
  if (below == nbytes) {
    return nbytes;
  }
  size_t step = below / divisions;
  return step == 0 ? nbytes : (nbytes + step - 1) / step * step;
}

} // namespace neuron::memory
