// The heaps of all devices, made when first used and never destroyed: tensors may be freed while the process exits.
#pragma once

#include "memory/caching_allocator_heap.h"

#include <functional>

namespace neuron::memory {

// The device's heap; null when nothing was allocated there yet.
DeviceHeap* existing_heap(c10::DeviceIndex device) noexcept;
DeviceHeap& heap_of(c10::DeviceIndex device);
void for_each_heap(const std::function<void(DeviceHeap&)>& visit);

// Called with the device, the requested size, what is reserved and what is allowed, before the error is thrown.
using OutOfMemoryObserver = std::function<void(c10::DeviceIndex, size_t requested, size_t reserved, size_t allowed)>;
void add_out_of_memory_observer(OutOfMemoryObserver observer);
void notify_out_of_memory(c10::DeviceIndex device, size_t requested, size_t reserved, size_t allowed);

// Everything the device was given to do is done. Launches hold tensors until they ran, so this frees memory. Does
// nothing on an executor thread and in a forked child.
void wait_for_device(c10::DeviceIndex device);

// ---- what Python's memory functions need ----------------------------------------------------------------------------
// Waits for the streams that use cached memory, then gives all idle segments of all devices back to the host.
void empty_cache();
void set_memory_fraction(c10::DeviceIndex device, double fraction);
double memory_fraction(c10::DeviceIndex device);
// Free and total bytes of the device, as its driver would report them: cached memory is not free.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);
// Bytes of the largest piece that an allocation could get without new segments.
size_t largest_free_block(c10::DeviceIndex device);

// PyTorch's form of the counters, after blocks whose streams are done were taken back.
c10::CachingDeviceAllocator::DeviceStats device_stats(c10::DeviceIndex device);
void reset_accumulated_stats(c10::DeviceIndex device);
void reset_peak_stats(c10::DeviceIndex device);

} // namespace neuron::memory
