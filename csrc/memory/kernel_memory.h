// Memory that a host kernel allocates for its results, steered into device memory chosen before the kernel ran.
//
// ATen's functional CPU kernels allocate their own outputs. While a KernelMemory scope is open on a thread, the CPU
// allocator counts that thread's allocations and hands out a prepared block where the signature's record says that the
// n-th allocation becomes an output. All other allocations of the process are passed on unchanged.
#pragma once

#include "memory/caching_allocator.h"

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

namespace neuron::memory {

struct PreparedBlock {
  Allocation allocation;
  size_t nbytes = 0;
  int32_t ordinal = -1; // which allocation of the kernel takes it
};

class KernelMemory {
 public:
  // `prepared` may be null: then the scope only counts.
  KernelMemory(PreparedBlock* prepared, size_t count) noexcept;
  // Serves the first allocation from the device, whatever its size: for kernels that allocate their result first.
  KernelMemory(c10::DeviceIndex device, Stream& stream) noexcept;
  ~KernelMemory();
  KernelMemory(const KernelMemory&) = delete;
  KernelMemory& operator=(const KernelMemory&) = delete;

  // The ordinal of the newest allocation that returned `ptr`, or -1. Only known when nothing was prepared.
  int32_t ordinal_of(const void* ptr) const noexcept;
  // What the second form served: taken out by whoever adopts it, freed with the scope otherwise.
  Allocation& served() noexcept { return served_; }

 private:
  friend struct HostAllocatorHook;
  static constexpr size_t kRemembered = 4096; // a foreach operator makes one result a parameter
  PreparedBlock* prepared_;
  size_t count_;
  int32_t next_ordinal_ = 0;
  c10::DeviceIndex device_ = -1;
  Stream* stream_ = nullptr;
  Allocation served_;
  size_t next_prepared_ = 0; // prepared blocks are in the order of their ordinals
  c10::SmallVector<const void*, 8> seen_;
  KernelMemory* outer_;
};

// Installs the hook in front of the process's CPU allocator. Idempotent.
void install_host_allocator_hook();

} // namespace neuron::memory
