// Size classes and the limits of the caching allocator's two pools.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace neuron::memory {

constexpr size_t kMinBlockBytes = 256;
constexpr size_t kSmallPoolMaxBytes = size_t{1} << 20;  // requests up to this size use the small pool
constexpr size_t kSizeClassMaxBytes = size_t{16} << 20; // requests below are rounded up to a size class
constexpr size_t kExactRounding = 512;                  // larger requests are rounded to this only
constexpr size_t kMaxRequestBytes = size_t{1} << 60;    // far above any device, and safe to round

enum class Pool : uint8_t { kSmall = 0, kLarge = 1 };
constexpr int kPoolCount = 2;

// Steps of 256 B up to 4 KiB, then eight steps a doubling (at most 1/8 is lost) up to 16 MiB.
constexpr int kLinearClasses = 16;
constexpr int kLinearMaxLog2 = 12;
constexpr int kStepsPerDoublingLog2 = 3;
constexpr int kStepsPerDoubling = 1 << kStepsPerDoublingLog2;
constexpr int kSizeClassCount = kLinearClasses + (24 - kLinearMaxLog2) * kStepsPerDoubling;
constexpr int kNoSizeClass = -1;

struct SizeClass {
  int index = kNoSizeClass;
  size_t bytes = 0;
};

// The class of a request of 0 < nbytes < kSizeClassMaxBytes, or the exact size without a class above that.
inline SizeClass size_class_of(size_t nbytes) noexcept {
  if (nbytes <= size_t{1} << kLinearMaxLog2) {
    int index = static_cast<int>((nbytes + kMinBlockBytes - 1) / kMinBlockBytes) - 1;
    return {index, (static_cast<size_t>(index) + 1) * kMinBlockBytes};
  }
  if (nbytes >= kSizeClassMaxBytes) {
    return {kNoSizeClass, (nbytes + kExactRounding - 1) / kExactRounding * kExactRounding};
  }
  int log2 = 63 - std::countl_zero(static_cast<uint64_t>(nbytes - 1));
  int shift = log2 - kStepsPerDoublingLog2;
  size_t step = (nbytes - 1) >> shift; // kStepsPerDoubling .. 2 * kStepsPerDoubling - 1
  int index = kLinearClasses + (log2 - kLinearMaxLog2) * kStepsPerDoubling + static_cast<int>(step) - kStepsPerDoubling;
  return {index, (step + 1) << shift};
}

inline Pool pool_of(size_t rounded_bytes) noexcept {
  return rounded_bytes <= kSmallPoolMaxBytes ? Pool::kSmall : Pool::kLarge;
}

} // namespace neuron::memory
