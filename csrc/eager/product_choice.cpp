#include "eager/product_choice.h"

#include "eager/trial.h"
#include "trace/clock.h"

#include <ATen/Context.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <vector>

namespace neuron::eager {

namespace {

using kernels::SumOrder;

constexpr int8_t kNotOwn = -1;
// So many that not all of them agree by chance in an order that is not PyTorch's.
constexpr int64_t kEnoughResults = 128;
constexpr int64_t kEnoughRows = 16;

// float16 products may be set to be added in float16.
bool settings_allow(const at::Tensor& operand) {
  return operand.scalar_type() != c10::kHalf || !at::globalContext().allowFP16ReductionCPU();
}

// Numbers at the ends of the range, in rows of their own: sums that overflow or become subnormal, and no numbers.
void add_extreme_rows(const at::Tensor& a, const at::Generator& generator) {
  if (a.size(-2) < kEnoughRows) {
    return;
  }
  const bool half = a.scalar_type() == c10::kHalf;
  const auto row = [&](int64_t index) { return a.select(-2, index); };
  row(1).normal_(0, half ? 0x1p+8 : 0x1p+117, generator);
  row(2).normal_(0, half ? 0x1p-20 : 0x1p-133, generator);
  row(3).narrow(-1, 0, 1).fill_(std::numeric_limits<double>::infinity());
  row(4).narrow(-1, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
}

// Which of several patterns that stand for "not a number" a kernel makes is no part of its result.
bool same_numbers(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.strides() != b.strides() || !a.is_contiguous()) {
    return false;
  }
  const uint16_t exponent = a.scalar_type() == c10::kHalf ? 0x7c00 : 0x7f80;
  const auto is_nan = [&](uint16_t bits) { return (bits & 0x7fff) > exponent; };
  const auto* const first = static_cast<const uint16_t*>(a.const_data_ptr());
  return std::equal(
      first, first + a.numel(), static_cast<const uint16_t*>(b.const_data_ptr()),
      [&](uint16_t x, uint16_t y) { return x == y || (is_nan(x) && is_nan(y)); });
}

// Whether the processor has instructions for such products, which PyTorch's kernels use by way of oneDNN.
bool host_multiplies(c10::ScalarType dtype) {
  const auto ask = [](const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
    return op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && op->typed<bool()>().call();
  };
  static const bool bfloat16 = ask("mkldnn::_is_mkldnn_bf16_supported");
  static const bool float16 = ask("mkldnn::_is_mkldnn_fp16_supported");
  return dtype == c10::kHalf ? float16 : bfloat16;
}

template <class Function>
auto timed(int64_t& ticks, const Function& function) {
  const auto start = c10::getApproximateTime();
  auto result = function();
  ticks = static_cast<int64_t>(c10::getApproximateTime() - start);
  return result;
}

// The order in which PyTorch's kernel adds, if ours is faster.
std::optional<SumOrder> find_order(
    const c10::OperatorHandle& op, ProductKind kind, const torch::jit::Stack& arguments) {
  std::vector<SumOrder> candidates{SumOrder::Four, SumOrder::Sequential, SumOrder::Vector};
  TrialValues values;
  int64_t compared = 0;
  int64_t host_ticks = 0;
  std::optional<ProductOperands> operands;
  do {
    auto stack = values.like(arguments, TrialValues::Kind::Cancelling, adds_to_products(kind));
    operands = ProductOperands::of(kind, stack);
    if (!operands) {
      return std::nullopt;
    }
    add_extreme_rows(operands->a, values.generator());
    const at::Tensor expected = timed(host_ticks, [&] {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      return stack[0].toTensor();
    });
    std::erase_if(candidates, [&](SumOrder order) { return !same_numbers(operands->multiply(order), expected); });
    compared += expected.numel();
  } while (!candidates.empty() && compared < kEnoughResults);
  if (candidates.empty()) {
    return std::nullopt;
  }
  int64_t own_ticks = 0;
  timed(own_ticks, [&] { return operands->multiply(candidates[0]); });
  return own_ticks < host_ticks ? std::optional(candidates[0]) : std::nullopt;
}

} // namespace

void ProductChoice::try_once(const c10::OperatorHandle& op, ProductKind kind, const torch::jit::Stack& arguments) {
  if (verdict_.load(std::memory_order_relaxed) != 0) {
    return;
  }
  const auto operands = ProductOperands::of(kind, arguments);
  if (!operands || !settings_allow(operands->a)) {
    return; // another call with this signature may do, with other numbers for alpha and beta
  }
  if (!kernels::can_multiply_reduced() || host_multiplies(operands->a.scalar_type())) {
    verdict_.store(kNotOwn, std::memory_order_relaxed);
    return;
  }
  std::optional<SumOrder> order;
  try {
    order = find_order(op, kind, arguments);
  } catch (const std::exception&) {
    // The kernel refuses what it was given. The launch itself will tell.
  }
  with_onednn_.store(at::globalContext().userEnabledMkldnn(), std::memory_order_relaxed);
  verdict_.store(order ? static_cast<int8_t>(1 + static_cast<int>(*order)) : kNotOwn, std::memory_order_relaxed);
}

std::optional<ProductOperands> ProductChoice::covered(ProductKind kind, const torch::jit::Stack& arguments) const {
  if (!has_own() || at::globalContext().userEnabledMkldnn() != with_onednn_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  auto operands = ProductOperands::of(kind, arguments);
  return operands && settings_allow(operands->a) ? std::move(operands) : std::nullopt;
}

SumOrder ProductChoice::order() const noexcept {
  return static_cast<SumOrder>(verdict_.load(std::memory_order_relaxed) - 1);
}

} // namespace neuron::eager
