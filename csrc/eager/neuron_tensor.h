// Making neuron tensors: over fresh device memory, over an existing storage, and out of what a host kernel returned.
#pragma once

#include "memory/caching_allocator.h"
#include "memory/storage.h"

#include <ATen/core/Tensor.h>

namespace neuron::eager {

// A storage over the allocation (which it then owns); nbytes may be 0 with an empty allocation.
c10::intrusive_ptr<NeuronStorageImpl> make_storage(
    const memory::Allocation& allocation, size_t nbytes, c10::DeviceIndex device, Stream& stream);

// Allocates when nbytes > 0.
c10::intrusive_ptr<NeuronStorageImpl> allocate_storage(size_t nbytes, c10::DeviceIndex device, Stream& stream);

at::Tensor make_tensor(
    c10::intrusive_ptr<c10::StorageImpl> storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
    c10::IntArrayRef strides, int64_t offset);

// A CPU tensor over the same memory, for host code. The caller sees to it that no launch is using the memory.
at::Tensor host_view(const at::Tensor& tensor);

// Turns a CPU tensor that nobody else holds into a neuron tensor over `storage`, in place: its sizes, strides, offset
// and dtype stay. Saves making a second TensorImpl.
void turn_into_neuron(const at::Tensor& tensor, c10::intrusive_ptr<c10::StorageImpl> storage);

} // namespace neuron::eager
