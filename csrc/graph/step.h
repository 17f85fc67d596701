// The steps of a compiled graph, on CPU tensors over device memory. They are what the generated wrapper code says, one
// step a statement, executed without Python.
#pragma once

#include "eager/product_operands.h"
#include "graph/integer_expression.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace neuron::graph {

using Slot = uint32_t;

// The variables of one run.
struct Frame {
  std::vector<at::Tensor> slots;
  Registers registers;
  // The generator for the n-th random operator of the run; undefined generators mean the CPU's default one.
  std::function<std::optional<at::Generator>(uint32_t draw)> generator;
};

struct Step {
  virtual ~Step() = default;
  virtual void run(Frame& frame) const = 0;
};

// buf = empty_strided_cpu(sizes, strides, dtype)
struct AllocateStep final : Step {
  Slot result = 0;
  IntegerTuple sizes, strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  void run(Frame& frame) const override;
};

// buf = reinterpret_tensor(source, sizes, strides, offset): the offset counts from that of the source.
struct ViewStep final : Step {
  Slot result = 0, source = 0;
  IntegerTuple sizes, strides;
  IntegerExpression offset;
  void run(Frame& frame) const override;
};

struct FreeStep final : Step {
  Slot slot = 0;
  void run(Frame& frame) const override { frame.slots[slot].reset(); }
};

// Throws when an input or a result has another layout or dtype than the code was generated for.
struct CheckLayoutStep final : Step {
  Slot slot = 0;
  IntegerTuple sizes, strides;
  std::optional<c10::ScalarType> dtype; // nullopt: any
  std::string what;
  void run(Frame& frame) const override;
};

// register = buf.item()
struct ItemStep final : Step {
  uint32_t result = 0;
  Slot source = 0;
  void run(Frame& frame) const override;
};

// A generated kernel. Holds the library that the function lies in.
struct KernelStep final : Step {
  struct Argument {
    bool is_tensor = true;
    Slot slot = 0;
    IntegerExpression value;
  };
  const void* function = nullptr;
  std::shared_ptr<void> library;
  std::vector<Argument> arguments;
  void run(Frame& frame) const override;
};

// An operator of PyTorch or of a library, called by its CPU kernel.
struct OperatorStep final : Step {
  struct Argument {
    enum class Kind : uint8_t { Constant, Tensor, Integer, Integers, Tensors, OptionalTensors, Generator };
    Kind kind = Kind::Constant;
    c10::IValue constant;
    Slot slot = 0;
    IntegerExpression integer;
    IntegerTuple integers;
    std::vector<std::optional<Slot>> slots; // Tensors, OptionalTensors
  };
  explicit OperatorStep(const c10::OperatorHandle& op);
  c10::OperatorHandle op;
  eager::ProductKind product; // of the out= form of an operator that multiplies matrices
  std::vector<Argument> arguments;
  std::vector<Slot> results; // lists and tuples lie flat
  uint32_t draw = 0;         // which random operator of the graph this is
  void run(Frame& frame) const override;
};

} // namespace neuron::graph
