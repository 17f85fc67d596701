// The device's caching allocator: blocks cut from segments, reused in stream order.
//
// A block freed on stream S may be handed out again to S at once, since everything that used it was submitted before.
// Blocks used on other streams (record_stream) come back when those streams have passed the point of the free.
#pragma once

#include "stream/stream.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>

namespace neuron::memory {

struct Block; // defined in caching_allocator.cpp

// A raw allocation of at least `nbytes` on the device, for use on `stream` first. nbytes > 0; aligned to 64 bytes.
// Throws c10::OutOfMemoryError with a summary.
struct Allocation {
  void* ptr = nullptr;
  Block* block = nullptr;
};
Allocation allocate(c10::DeviceIndex device, size_t nbytes, Stream& stream);
void free(Block* block) noexcept;

// The c10::DataPtr form: context is the Block, deleter is free. nbytes == 0 gives a null pointer on the device.
c10::DataPtr allocate_data_ptr(c10::DeviceIndex device, size_t nbytes, Stream& stream);
c10::DataPtr wrap(const Allocation& allocation, c10::DeviceIndex device);

// The block's memory may be in use on `stream`, too.
void record_stream(const c10::DataPtr& ptr, Stream& stream);
// Up to which launch of its own stream the block's former user may still be running; a host copy may write into the
// block ahead of the queue once the stream has completed that launch.
uint64_t ready_after(const Block* block) noexcept;

// The device that owns the address, or -1.
c10::DeviceIndex device_of(const void* ptr) noexcept;

// The deleter of every DataPtr that holds a block of ours.
c10::DeleterFnPtr block_deleter() noexcept;

c10::DeviceAllocator& device_allocator();

} // namespace neuron::memory
