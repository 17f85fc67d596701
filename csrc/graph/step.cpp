#include "graph/step.h"

#include "eager/out_product.h"
#include "graph/kernel_function.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <c10/core/TensorImpl.h>

namespace neuron::graph {

void AllocateStep::run(Frame& frame) const {
  c10::SmallVector<int64_t, 6> size_scratch;
  c10::SmallVector<int64_t, 6> stride_scratch;
  frame.slots[result] = at::detail::empty_strided_cpu(
      sizes.evaluate(frame.registers, size_scratch), strides.evaluate(frame.registers, stride_scratch), dtype);
}

void ViewStep::run(Frame& frame) const {
  c10::SmallVector<int64_t, 6> size_scratch;
  c10::SmallVector<int64_t, 6> stride_scratch;
  const at::Tensor& from = frame.slots[source];
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(from.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), from.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(
      sizes.evaluate(frame.registers, size_scratch), strides.evaluate(frame.registers, stride_scratch),
      from.storage_offset() + offset.evaluate(frame.registers));
  frame.slots[result] = std::move(view);
}

void CheckLayoutStep::run(Frame& frame) const {
  c10::SmallVector<int64_t, 6> size_scratch;
  c10::SmallVector<int64_t, 6> stride_scratch;
  const at::Tensor& tensor = frame.slots[slot];
  const auto wanted_sizes = sizes.evaluate(frame.registers, size_scratch);
  const auto wanted_strides = strides.evaluate(frame.registers, stride_scratch);
  TORCH_INTERNAL_ASSERT(tensor.defined(), what, " is not there any more");
  bool same = tensor.sizes() == wanted_sizes && tensor.dim() == static_cast<int64_t>(wanted_strides.size());
  for (size_t d = 0; same && d < wanted_strides.size(); ++d) {
    same = wanted_sizes[d] <= 1 || tensor.numel() == 0 || tensor.stride(static_cast<int64_t>(d)) == wanted_strides[d];
  }
  TORCH_CHECK(
      same, what, " of a compiled graph has sizes ", tensor.sizes(), " and strides ", tensor.strides(),
      ", but the graph was compiled for sizes ", wanted_sizes, " and strides ", wanted_strides);
  TORCH_CHECK(
      !dtype || tensor.scalar_type() == *dtype, what, " of a compiled graph has dtype ", tensor.scalar_type(),
      ", but the graph was compiled for ", dtype.value_or(c10::ScalarType::Undefined));
}

void ItemStep::run(Frame& frame) const {
  const auto value = at::_local_scalar_dense(frame.slots[source]);
  frame.registers[result] = value.isBoolean() ? static_cast<int64_t>(value.toBool()) : value.toLong();
}

void KernelStep::run(Frame& frame) const {
  c10::SmallVector<uint64_t, 24> words;
  for (const auto& argument : arguments) {
    words.push_back(
        argument.is_tensor ? reinterpret_cast<uint64_t>(frame.slots[argument.slot].data_ptr())
                           : static_cast<uint64_t>(argument.value.evaluate(frame.registers)));
  }
  call_kernel_function(function, words.data(), words.size());
}

namespace {

c10::IValue value_of(const OperatorStep::Argument& argument, Frame& frame, uint32_t draw) {
  using Kind = OperatorStep::Argument::Kind;
  switch (argument.kind) {
    case Kind::Constant:
      return argument.constant;
    case Kind::Tensor:
      return frame.slots[argument.slot];
    case Kind::Integer:
      return argument.integer.evaluate(frame.registers);
    case Kind::Integers: {
      c10::SmallVector<int64_t, 6> scratch;
      return c10::IValue(argument.integers.evaluate(frame.registers, scratch).vec());
    }
    case Kind::Tensors: {
      c10::List<at::Tensor> list;
      for (const auto& slot : argument.slots) {
        list.push_back(frame.slots[slot.value()]);
      }
      return list;
    }
    case Kind::OptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& slot : argument.slots) {
        list.push_back(slot.has_value() ? std::optional<at::Tensor>(frame.slots[*slot]) : std::nullopt);
      }
      return list;
    }
    case Kind::Generator: {
      auto generator = frame.generator(draw);
      return generator.has_value() ? c10::IValue(std::move(*generator)) : c10::IValue();
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

} // namespace

OperatorStep::OperatorStep(const c10::OperatorHandle& op)
    : op(op),
      product(
          op.operator_name().overload_name == "out" ? eager::product_kind(op.operator_name().name)
                                                    : eager::ProductKind::None) {}

void OperatorStep::run(Frame& frame) const {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (const auto& argument : arguments) {
    stack.push_back(value_of(argument, frame, draw));
  }
  if (product != eager::ProductKind::None && eager::multiply_by_own_kernel(op, product, stack)) {
    stack.erase(stack.begin(), stack.end() - 1); // what was written is the result
  } else {
    op.callBoxed(&stack);
  }
  size_t next = 0;
  const auto keep = [&](const at::Tensor& tensor) {
    if (next < results.size()) {
      frame.slots[results[next]] = tensor;
    }
    ++next;
  };
  for (const auto& value : stack) {
    if (value.isTensor()) {
      keep(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& item : value.toListRef()) {
        keep(item.toTensor());
      }
    } else {
      keep(at::Tensor()); // a host value that the graph does not use
    }
  }
  TORCH_CHECK(next >= results.size(), op.schema().name(), " returned ", next, " results, expected ", results.size());
}

} // namespace neuron::graph
