// Segments: the ranges of a device's address space that are backed by memory.
//
// Each device has one reserved range of addresses, so that the owner of a pointer is a comparison. Host memory is taken
// only for pages that are touched, and given back when a segment is released. Where the range cannot be reserved
// (`ulimit -v`, small containers), each segment is a mapping of its own.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace neuron::memory {

constexpr size_t kSegmentAlignment = size_t{2} << 20; // the huge page size, so that segments can be made of them
constexpr size_t kMaxDevices = 128;                   // c10::DeviceIndex has 8 bits

inline size_t whole_segments(size_t bytes) noexcept {
  return (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
}

class AddressSpace {
 public:
  // Reserves addresses for `hbm_bytes` of memory. Never fails: without a range, segments are mapped one by one.
  AddressSpace(c10::DeviceIndex device, size_t hbm_bytes);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Zeroed memory, readable and writable unless made inaccessible; `bytes` is a multiple of kSegmentAlignment. Null
  // when the host refuses. Huge pages save address translation in big tensors, but the first touch takes and clears 2
  // MiB at once.
  void* map(size_t bytes, bool huge_pages) noexcept;
  // Gives the pages back to the host; an access faults from then on.
  void unmap(void* ptr, size_t bytes) noexcept;
  // Makes all segments, also those mapped later, accessible or not (guard mode, and a forked child).
  void set_accessible(bool accessible) noexcept;

  bool reserved() const noexcept { return base_ != 0; }

 private:
  void* take_range(size_t bytes) noexcept;
  void give_range(uintptr_t start, size_t bytes) noexcept;

  const c10::DeviceIndex device_;
  uintptr_t base_ = 0;
  size_t size_ = 0;
  bool accessible_ = true;
  std::map<uintptr_t, size_t> free_ranges_;   // start -> bytes, inside the reserved range
  std::map<uintptr_t, size_t> mapped_ranges_; // start -> bytes
};

// The device whose address space holds the pointer, or -1. Lock-free unless segments had to be mapped one by one.
c10::DeviceIndex device_of_address(const void* ptr) noexcept;

} // namespace neuron::memory
