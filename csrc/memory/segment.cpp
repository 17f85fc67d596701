#include "memory/segment.h"

#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>

#include <sys/mman.h>

namespace neuron::memory {

namespace {

// Twice the memory: segments of many sizes come and go, and addresses, unlike memory, cost nothing.
constexpr size_t kAddressesPerByte = 2;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

struct Range {
  std::atomic<uintptr_t> start{0};
  std::atomic<uintptr_t> end{0};
};
std::array<Range, kMaxDevices> ranges;
std::atomic<int> device_bound{0}; // devices above never reserved a range

// Only for segments outside the reserved ranges.
struct StraySegments {
  std::shared_mutex mutex;
  std::map<uintptr_t, std::pair<uintptr_t, c10::DeviceIndex>> by_start; // start -> (end, device)
  std::atomic<bool> any{false};
};
StraySegments& stray_segments() {
  static auto* segments = new StraySegments; // outlives static destruction: tensors may be freed during exit
  return *segments;
}

uintptr_t align_up(uintptr_t value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// A range without access, aligned to kSegmentAlignment; 0 when the host refuses.
uintptr_t reserve_addresses(size_t bytes) noexcept {
  size_t padded = bytes + kSegmentAlignment;
  void* raw = mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    return 0;
  }
  auto start = reinterpret_cast<uintptr_t>(raw);
  uintptr_t aligned = align_up(start, kSegmentAlignment);
  if (aligned > start) {
    munmap(raw, aligned - start);
  }
  uintptr_t tail = aligned + bytes;
  if (start + padded > tail) {
    munmap(reinterpret_cast<void*>(tail), start + padded - tail);
  }
  auto* range = reinterpret_cast<void*>(aligned);
  // A forked child cannot use the device; without this every page that is written after a fork would be copied.
  madvise(range, bytes, MADV_WIPEONFORK);
  return aligned;
}

// Advice only: a kernel without huge pages refuses, which changes nothing but speed.
void choose_page_size(void* ptr, size_t bytes, bool huge_pages) noexcept {
  madvise(ptr, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

} // namespace

AddressSpace::AddressSpace(c10::DeviceIndex device, size_t hbm_bytes) : device_(device) {
  size_t rounded = align_up(hbm_bytes, kSegmentAlignment);
  for (size_t factor = kAddressesPerByte; factor > 0 && base_ == 0; --factor) {
    size_ = rounded * factor;
    base_ = reserve_addresses(size_);
  }
  if (base_ == 0) {
    size_ = 0;
    return;
  }
  free_ranges_.emplace(base_, size_);
  ranges[device].start.store(base_, std::memory_order_relaxed);
  ranges[device].end.store(base_ + size_, std::memory_order_release);
  int bound = device_bound.load(std::memory_order_relaxed);
  while (bound < device + 1 && !device_bound.compare_exchange_weak(bound, device + 1, std::memory_order_release)) {
  }
}

void* AddressSpace::take_range(size_t bytes) noexcept {
  for (auto it = free_ranges_.begin(); it != free_ranges_.end(); ++it) {
    if (it->second < bytes) {
      continue;
    }
    uintptr_t start = it->first;
    size_t rest = it->second - bytes;
    free_ranges_.erase(it);
    if (rest != 0) {
      free_ranges_.emplace(start + bytes, rest);
    }
    return reinterpret_cast<void*>(start);
  }
  return nullptr;
}

void AddressSpace::give_range(uintptr_t start, size_t bytes) noexcept {
  auto next = free_ranges_.lower_bound(start);
  if (next != free_ranges_.end() && start + bytes == next->first) {
    bytes += next->second;
    next = free_ranges_.erase(next);
  }
  if (next != free_ranges_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      previous->second += bytes;
      return;
    }
  }
  free_ranges_.emplace(start, bytes);
}

void* AddressSpace::map(size_t bytes, bool huge_pages) noexcept {
  if (void* ptr = take_range(bytes)) {
    if (mprotect(ptr, bytes, accessible_ ? kReadWrite : PROT_NONE) != 0) {
      give_range(reinterpret_cast<uintptr_t>(ptr), bytes);
      return nullptr;
    }
    choose_page_size(ptr, bytes, huge_pages);
    mapped_ranges_.emplace(reinterpret_cast<uintptr_t>(ptr), bytes);
    return ptr;
  }
  uintptr_t start = reserve_addresses(bytes);
  if (start == 0) {
    return nullptr;
  }
  void* ptr = reinterpret_cast<void*>(start);
  if (mprotect(ptr, bytes, accessible_ ? kReadWrite : PROT_NONE) != 0) {
    munmap(ptr, bytes);
    return nullptr;
  }
  choose_page_size(ptr, bytes, huge_pages);
  mapped_ranges_.emplace(start, bytes);
  StraySegments& stray = stray_segments();
  std::unique_lock lock(stray.mutex);
  stray.by_start.emplace(start, std::pair(start + bytes, device_));
  stray.any.store(true, std::memory_order_release);
  return ptr;
}

void AddressSpace::unmap(void* ptr, size_t bytes) noexcept {
  auto start = reinterpret_cast<uintptr_t>(ptr);
  mapped_ranges_.erase(start);
  if (start >= base_ && start < base_ + size_) {
    madvise(ptr, bytes, MADV_DONTNEED);
    mprotect(ptr, bytes, PROT_NONE);
    give_range(start, bytes);
    return;
  }
  {
    StraySegments& stray = stray_segments();
    std::unique_lock lock(stray.mutex);
    stray.by_start.erase(start);
    stray.any.store(!stray.by_start.empty(), std::memory_order_release);
  }
  munmap(ptr, bytes);
}

void AddressSpace::set_accessible(bool accessible) noexcept {
  accessible_ = accessible;
  for (auto [start, bytes] : mapped_ranges_) {
    mprotect(reinterpret_cast<void*>(start), bytes, accessible ? kReadWrite : PROT_NONE);
  }
}

c10::DeviceIndex device_of_address(const void* ptr) noexcept {
  auto address = reinterpret_cast<uintptr_t>(ptr);
  int bound = device_bound.load(std::memory_order_acquire);
  for (int device = 0; device < bound; ++device) {
    if (address < ranges[device].end.load(std::memory_order_acquire) &&
        address >= ranges[device].start.load(std::memory_order_relaxed)) {
      return static_cast<c10::DeviceIndex>(device);
    }
  }
  StraySegments& stray = stray_segments();
  if (stray.any.load(std::memory_order_acquire)) {
    std::shared_lock lock(stray.mutex);
    auto next = stray.by_start.upper_bound(address);
    if (next != stray.by_start.begin()) {
      auto [end, device] = std::prev(next)->second;
      if (address < end) {
        return device;
      }
    }
  }
  return -1;
}

} // namespace neuron::memory
