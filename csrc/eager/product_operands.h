// The operators that multiply matrices, as products for the kernels in kernels/reduced_product.h.
#pragma once

#include "kernels/reduced_product.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string_view>
#include <vector>

namespace neuron::eager {

enum class ProductKind : uint8_t { None, Matrix, MatrixWithAddend, Batched, BatchedWithAddend };

// Of an operator such as "aten::mm", its functional and its `out=` form.
ProductKind product_kind(std::string_view name);
// Whether the first argument is added to the product.
bool adds_to_products(ProductKind kind);

// What a call multiplies: tensors on the CPU, all of one 16-bit dtype.
struct ProductOperands {
  // Empty if the call is nothing for our kernels.
  static std::optional<ProductOperands> of(ProductKind kind, const torch::jit::Stack& arguments);

  at::Tensor a;
  at::Tensor b;
  std::optional<at::Tensor> addend; // expanded to the result's sizes
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  int64_t batch = 1;

  std::vector<int64_t> result_sizes() const;
  // On as many threads as ATen's kernels would take, with the same result for any number.
  at::Tensor multiply(kernels::SumOrder order) const;
  // `result`: contiguous, and in no operand's memory.
  void multiply_into(const at::Tensor& result, kernels::SumOrder order) const;

 private:
  int64_t products() const { return batch * rows * columns * depth; }
};

} // namespace neuron::eager
