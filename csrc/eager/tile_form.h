// Element-wise operators, single ones and those over lists, as steps over tiles (kernels/tile_op.h).
#pragma once

#include "kernels/tile_op.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string_view>
#include <vector>

namespace neuron::eager {

// Where an operator's arguments are.
struct TileForm {
  kernels::TileOp op;
  kernels::TileOp number_op; // when argument `y` is a number, or a tensor without dimensions
  int8_t y = -1;             // -1: there is none
  int8_t z = -1;
  int8_t number = -1;
  bool minus = false; // the number counts negative
  bool in_place = false;
  bool list = false;
};

// Of an operator such as "aten::mul_.Tensor"; null if it is none of those that are known.
const TileForm* tile_form(std::string_view name);

// One operator on one tensor. All its tensors have the same layout, without gaps.
struct TileStep {
  kernels::TileFunction function = nullptr;
  kernels::TileArguments arguments;
  kernels::TileDtype dtype = kernels::TileDtype::Float32;
  int64_t count = 0;
  int64_t bytes = 0;                 // of each tensor
  const void* number_from = nullptr; // the tensor that the number was read from
  bool has_y = false;
  bool has_z = false;
  // Filled in by the region: the scratch memory that stands for an operand's; kMemory: none does.
  static constexpr int8_t kMemory = -1;
  int8_t x_slot = kMemory;
  int8_t y_slot = kMemory;
  int8_t z_slot = kMemory;
  int8_t result_slot = kMemory;
};

// The memory for a result that lies like `tensor`, number `index` of the operator's results; null: there is none.
using TileResult = std::function<void*(size_t index, const at::Tensor& tensor)>;

// Whether the argument `number` changes nothing.
bool stands_for_one(const c10::IValue& value);

// Appends the steps of a call, one a tensor. False, with `steps` as before: the call is nothing for tiles. Reads the
// numbers in tensors without dimensions.
bool append_steps(
    const TileForm& form, const kernels::TileVariant& variant, const torch::jit::Stack& arguments,
    const TileResult& result, std::vector<TileStep>& steps);

} // namespace neuron::eager
