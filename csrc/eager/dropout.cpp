// Dropout in the operations that the CPU uses, so that training with it can be compared bit by bit.
//
// PyTorch sends PrivateUse1 to native_dropout, which rounds differently in the backward pass.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout_native.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace neuron::eager {

namespace {

// What the input is multiplied with.
at::Tensor dropout_factor(const at::Tensor& input, double p) {
  if (p == 1) {
    return at::zeros({}, input.options());
  }
  auto noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  noise.div_(1 - p);
  return noise;
}

bool drops(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  return p > 0 && train && input.numel() > 0;
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  return drops(input, p, train) ? input.mul(dropout_factor(input, p)) : input;
}

at::Tensor& dropout_(at::Tensor& input, double p, bool train) {
  return drops(input, p, train) ? input.mul_(dropout_factor(input, p)) : input;
}

} // namespace

// Composite kernels: their parts are differentiated and autocast one by one, as on the CPU.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("dropout", &dropout);
  m.impl("dropout_", &dropout_);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("dropout", &dropout);
  m.impl("dropout_", &dropout_);
  m.impl("native_dropout", &at::native::native_dropout_cpu);
}

} // namespace neuron::eager
