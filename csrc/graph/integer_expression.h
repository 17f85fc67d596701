// Integer expressions over the symbolic sizes of a compiled graph: what `8*s0` in generated code stands for.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace neuron::graph {

using Registers = std::vector<int64_t>;

// In postfix order. Division and remainder round towards minus infinity, as Python's do.
class IntegerExpression {
 public:
  enum class Op : uint8_t {
    Constant,
    Register,
    Add,
    Subtract,
    Multiply,
    FloorDivide,
    Modulo,
    Negate,
    Minimum,
    Maximum
  };
  struct Term {
    Op op = Op::Constant;
    int64_t value = 0; // of a constant; number of a register
  };

  IntegerExpression() = default;
  explicit IntegerExpression(int64_t constant) : terms_{{Op::Constant, constant}} {}
  // Throws ValueError unless the terms leave exactly one value.
  explicit IntegerExpression(c10::ArrayRef<Term> terms);

  std::optional<int64_t> constant() const;
  // Throws RuntimeError for a division by zero.
  int64_t evaluate(const Registers& registers) const;

 private:
  c10::SmallVector<Term, 1> terms_;
};

// Sizes or strides. Those without symbols are ready at once.
class IntegerTuple {
 public:
  IntegerTuple() = default;
  explicit IntegerTuple(std::vector<IntegerExpression> items);

  // Valid while this object and `scratch` live.
  c10::ArrayRef<int64_t> evaluate(const Registers& registers, c10::SmallVectorImpl<int64_t>& scratch) const;

 private:
  std::vector<IntegerExpression> items_;
  std::vector<int64_t> constants_;
  bool constant_ = true;
};

} // namespace neuron::graph
