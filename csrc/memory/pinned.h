// Pinned host memory: host memory that copies to and from the device may use while the caller goes on.
//
// The host computes the device's work, so nothing needs to be locked into RAM: pinned means allocated here, which is
// what makes `is_pinned()` true and holds a block back while a non-blocking copy of it is still queued.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace neuron::memory {

// Whether the address lies in a block of pinned memory.
bool is_pinned(const void* ptr) noexcept;

// Caches blocks of powers of two. Registered for the device type, so at::getHostAllocator finds it.
at::HostAllocator& pinned_host_allocator();

} // namespace neuron::memory
