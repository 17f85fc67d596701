// Tensors without values, and storages that grow.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace neuron::eager {

at::Tensor empty_memory_format(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format);
at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory);

// Makes the storage at least `nbytes` large, in stream order; what it held stays.
void grow_storage(const at::Tensor& self, size_t nbytes);
const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format);
at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride);
at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source);
at::Tensor& set_empty(at::Tensor& self);

} // namespace neuron::eager
