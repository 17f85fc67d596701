// Matrix products of 16-bit numbers by our own kernels, where these give the bits of PyTorch's.
//
// kernels/reduced_product.h says why there are own kernels. Which of its orders PyTorch's kernel adds in, if any,
// depends on the host, on PyTorch's build and on how the operands lie in memory. So each signature is tried once, on
// made-up values; where no order gives the same bits, or PyTorch's kernel is faster, that one stays.
#pragma once

#include "eager/product_operands.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>

namespace neuron::eager {

// What is known about one signature.
class ProductChoice {
 public:
  // Finds out, at the first call with operands for our kernels. That takes as long as PyTorch's kernel does. Call on
  // the thread that is to run it, outside of any KernelMemory scope.
  void try_once(const c10::OperatorHandle& op, ProductKind kind, const torch::jit::Stack& arguments);
  // Whether the trial was passed.
  bool has_own() const noexcept { return verdict_.load(std::memory_order_relaxed) > 0; }
  // The operands, if our kernel gives the right bits for this call.
  std::optional<ProductOperands> covered(ProductKind kind, const torch::jit::Stack& arguments) const;
  // Only after `covered`.
  kernels::SumOrder order() const noexcept;

 private:
  // 1 + the SumOrder, negative: PyTorch's kernel stays; 0: not tried.
  std::atomic<int8_t> verdict_{0};
  // At the trial, by which PyTorch's kernel is chosen.
  std::atomic<bool> with_onednn_{false};
};

} // namespace neuron::eager
