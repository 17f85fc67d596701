#include "eager/product_operands.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace neuron::eager {

namespace {

using kernels::ReducedProduct;
using kernels::SumOrder;

// Multiply-adds that are worth another thread: some 5 µs of work.
constexpr int64_t kProductsPerThread = 64 * 1024;
// Products that PyTorch's kernel does in no time need no other.
constexpr int64_t kMinProducts = 4096;

bool batched(ProductKind kind) {
  return kind == ProductKind::Batched || kind == ProductKind::BatchedWithAddend;
}

bool is_plain(const at::Tensor& tensor, c10::ScalarType dtype, int64_t dims) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.scalar_type() == dtype && tensor.dim() == dims &&
         tensor.layout() == c10::kStrided && !tensor.is_neg();
}

bool is_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().toDouble() == 1.0;
}

const uint16_t* numbers(const at::Tensor& tensor) {
  return static_cast<const uint16_t*>(tensor.const_data_ptr());
}

} // namespace

ProductKind product_kind(std::string_view name) {
  return name == "aten::mm"        ? ProductKind::Matrix
         : name == "aten::addmm"   ? ProductKind::MatrixWithAddend
         : name == "aten::bmm"     ? ProductKind::Batched
         : name == "aten::baddbmm" ? ProductKind::BatchedWithAddend
                                   : ProductKind::None;
}

bool adds_to_products(ProductKind kind) {
  return kind == ProductKind::MatrixWithAddend || kind == ProductKind::BatchedWithAddend;
}

std::optional<ProductOperands> ProductOperands::of(ProductKind kind, const torch::jit::Stack& stack) {
  const size_t first = adds_to_products(kind) ? 1 : 0;
  if (stack.size() < first + 2 || !stack[first].isTensor() || !stack[first + 1].isTensor()) {
    return std::nullopt;
  }
  ProductOperands found;
  found.a = stack[first].toTensor();
  found.b = stack[first + 1].toTensor();
  const auto dtype = found.a.scalar_type();
  const int64_t dims = batched(kind) ? 3 : 2;
  if ((dtype != c10::kBFloat16 && dtype != c10::kHalf) || !is_plain(found.a, dtype, dims) ||
      !is_plain(found.b, dtype, dims)) {
    return std::nullopt;
  }
  found.rows = found.a.size(-2);
  found.depth = found.a.size(-1);
  found.columns = found.b.size(-1);
  found.batch = batched(kind) ? found.a.size(0) : 1;
  if (found.b.size(-2) != found.depth || (batched(kind) && found.b.size(0) != found.batch) ||
      found.products() < kMinProducts) {
    return std::nullopt; // also what the kernel will refuse
  }
  if (adds_to_products(kind)) {
    if (stack.size() < 5 || !stack[0].isTensor() || !is_one(stack[3]) || !is_one(stack[4])) {
      return std::nullopt;
    }
    const at::Tensor& addend = stack[0].toTensor();
    if (!is_plain(addend, dtype, addend.dim()) || addend.dim() > dims) {
      return std::nullopt;
    }
    found.addend = addend.expand(found.result_sizes());
  }
  return found;
}

std::vector<int64_t> ProductOperands::result_sizes() const {
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = columns;
  return sizes;
}

at::Tensor ProductOperands::multiply(SumOrder order) const {
  at::Tensor result = at::empty(result_sizes(), a.options());
  multiply_into(result, order);
  return result;
}

void ProductOperands::multiply_into(const at::Tensor& result, SumOrder order) const {
  // Large sides are shared out among threads: it changes no result, only what is packed twice.
  const int64_t threads =
      std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, products() / kProductsPerThread));
  const int64_t parts = batch >= threads ? 1 : threads;
  const bool split_rows = rows >= columns;
  const int64_t side = split_rows ? rows : columns;
  const int64_t part_size = std::max<int64_t>(1, (side + parts - 1) / parts + 15) / 16 * 16;

  ReducedProduct whole;
  whole.type = a.scalar_type() == c10::kHalf ? kernels::ReducedType::Float16 : kernels::ReducedType::BFloat16;
  whole.rows = rows;
  whole.columns = columns;
  whole.depth = depth;
  whole.a = numbers(a);
  whole.a_row = a.stride(-2);
  whole.a_depth = a.stride(-1);
  whole.b = numbers(b);
  whole.b_depth = b.stride(-2);
  whole.b_column = b.stride(-1);
  if (addend) {
    whole.addend = numbers(*addend);
    whole.addend_row = addend->stride(-2);
    whole.addend_column = addend->stride(-1);
  }
  whole.result = static_cast<uint16_t*>(result.mutable_data_ptr());
  whole.result_row = columns;
  whole.result_column = 1;

  const auto run_part = [&](int64_t index) {
    const int64_t matrix = index / parts;
    const int64_t begin = index % parts * part_size;
    const int64_t size = std::min(part_size, side - begin);
    if (size <= 0) {
      return;
    }
    ReducedProduct part = whole;
    if (a.dim() == 3) {
      part.a += matrix * a.stride(0);
      part.b += matrix * b.stride(0);
      part.result += matrix * rows * columns;
      if (part.addend != nullptr) {
        part.addend += matrix * addend->stride(0);
      }
    }
    if (split_rows) {
      part.rows = size;
      part.a += begin * part.a_row;
      part.result += begin * part.result_row;
      part.addend += part.addend != nullptr ? begin * part.addend_row : 0;
    } else {
      part.columns = size;
      part.b += begin * part.b_column;
      part.result += begin;
      part.addend += part.addend != nullptr ? begin * part.addend_column : 0;
    }
    kernels::multiply_reduced(part, order);
  };
  const int64_t tasks = batch * parts;
  const int64_t grain = std::max<int64_t>(1, (tasks + threads - 1) / threads);
  at::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      run_part(index);
    }
  });
}

} // namespace neuron::eager
