#include "graph/integer_expression.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace neuron::graph {

namespace {

int operands(IntegerExpression::Op op) {
  using Op = IntegerExpression::Op;
  return op == Op::Constant || op == Op::Register ? 0 : op == Op::Negate ? 1 : 2;
}

int64_t apply(IntegerExpression::Op op, int64_t a, int64_t b) {
  using Op = IntegerExpression::Op;
  switch (op) {
    case Op::Add:
      return a + b;
    case Op::Subtract:
      return a - b;
    case Op::Multiply:
      return a * b;
    case Op::Minimum:
      return std::min(a, b);
    case Op::Maximum:
      return std::max(a, b);
    case Op::FloorDivide:
    case Op::Modulo: {
      TORCH_CHECK(b != 0, "a size of the compiled graph divides by zero");
      const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      return op == Op::FloorDivide ? quotient : a - quotient * b;
    }
    default:
      TORCH_INTERNAL_ASSERT(false, "not a binary operator");
  }
}

} // namespace

IntegerExpression::IntegerExpression(c10::ArrayRef<Term> terms) : terms_(terms.begin(), terms.end()) {
  int depth = 0;
  for (const auto& term : terms) {
    const int taken = operands(term.op);
    TORCH_CHECK_VALUE(depth >= taken, "integer expression: an operator lacks operands");
    depth += 1 - taken;
  }
  TORCH_CHECK_VALUE(depth == 1, "integer expression: it leaves ", depth, " values instead of one");
}

std::optional<int64_t> IntegerExpression::constant() const {
  return terms_.size() == 1 && terms_[0].op == Op::Constant ? std::optional<int64_t>(terms_[0].value) : std::nullopt;
}

int64_t IntegerExpression::evaluate(const Registers& registers) const {
  c10::SmallVector<int64_t, 8> stack;
  for (const auto& term : terms_) {
    if (term.op == Op::Constant) {
      stack.push_back(term.value);
    } else if (term.op == Op::Register) {
      stack.push_back(registers.at(static_cast<size_t>(term.value)));
    } else if (term.op == Op::Negate) {
      stack.back() = -stack.back();
    } else {
      const int64_t b = stack.pop_back_val();
      stack.back() = apply(term.op, stack.back(), b);
    }
  }
  return stack.back();
}

IntegerTuple::IntegerTuple(std::vector<IntegerExpression> items) : items_(std::move(items)) {
  for (const auto& item : items_) {
    const auto value = item.constant();
    constant_ &= value.has_value();
    constants_.push_back(value.value_or(0));
  }
}

c10::ArrayRef<int64_t> IntegerTuple::evaluate(
    const Registers& registers, c10::SmallVectorImpl<int64_t>& scratch) const {
  if (constant_) {
    return constants_;
  }
  scratch.clear();
  for (const auto& item : items_) {
    scratch.push_back(item.evaluate(registers));
  }
  return scratch;
}

} // namespace neuron::graph
