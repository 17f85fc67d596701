// Copies: within a device, between devices, from and to the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace neuron::eager {

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& self, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& self);
// What is asked for lazily is done at once: kernels write through aliases, which would not notice a shared block.
at::Tensor clone_now(const at::Tensor& self);
// The value of a tensor with one element; waits for the launches that make it.
c10::Scalar local_scalar_dense(const at::Tensor& self);

} // namespace neuron::eager
