// Matrix products of bfloat16 and float16 numbers, for processors without instructions for them.
//
// On such hosts PyTorch's CPU kernels multiply number by number on one thread, up to seventy times slower than for
// float32. These here convert blocks to float32 and multiply them with vector instructions and on all threads. They add
// each result's products in the very order in which PyTorch's kernels add them, so they can give the same bits.
// Which order that is depends on how the operands lie in memory; eager/product_choice.h finds it out.
#pragma once

#include <cstdint>

namespace neuron::kernels {

enum class ReducedType : uint8_t { BFloat16, Float16 };

// How the products of one result are added, in float32.
enum class SumOrder : uint8_t {
  Sequential, // beginning with the addend, one product after the other
  Four,       // four sums, of each fourth product; then those, then the addend
  Vector      // 64 sums as in a loop over eight vector registers, folded in halves; then the addend
};

// result[i, j] = round(sum over l of a[i, l] * b[l, j], plus addend[i, j]), in numbers of 16 bits. Strides count
// numbers.
struct ReducedProduct {
  ReducedType type = ReducedType::BFloat16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  const uint16_t* a = nullptr;
  int64_t a_row = 0;
  int64_t a_depth = 0;
  const uint16_t* b = nullptr;
  int64_t b_depth = 0;
  int64_t b_column = 0;
  const uint16_t* addend = nullptr; // or null
  int64_t addend_row = 0;
  int64_t addend_column = 0;
  uint16_t* result = nullptr;
  int64_t result_row = 0;
  int64_t result_column = 0;
};

// Whether this processor can run `multiply`.
bool can_multiply_reduced() noexcept;
// On the calling thread only. Needs scratch memory in the order of depth * 300 numbers.
void multiply_reduced(const ReducedProduct& product, SumOrder order);

} // namespace neuron::kernels
