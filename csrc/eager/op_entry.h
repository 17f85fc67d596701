// What the eager layer knows about one operator: its schema, boiled down, and its policy. Made once an operator.
#pragma once

#include "eager/product_operands.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace neuron::eager {

struct TileForm;

struct OpEntry {
  explicit OpEntry(const c10::OperatorHandle& handle);

  c10::OperatorHandle op;
  std::string name; // "aten::add.Tensor"
  uint32_t num_args = 0;
  uint32_t num_returns = 0;

  // Bit i stands for argument i; arguments past 63 count as neither.
  uint64_t mutable_args = 0;
  uint64_t free_scalars = 0;         // numbers whose value can neither shape the result nor be refused at the call
  uint64_t host_args = 0;            // may be CPU tensors of any size next to neuron tensors
  std::vector<int8_t> return_is_arg; // for each return: the argument that it is (in-place and out= forms), or -1
  int8_t generator_arg = -1;

  // Policy; see policy.h.
  bool always_inline = false;    // the shape of a result depends on data, or the result is a host value
  bool random = false;           // draws from a generator
  bool masks_select = false;     // a bool or uint8 index makes the shape of the result depend on data
  bool fails_late = false;       // data can make the kernel raise: remember the user's line
  bool foreign = false;          // not PyTorch's own: its CPU kernel may be Python and need the GIL
  bool needs_gil = false;        // its kernel takes the GIL, so nobody may hold the stream while it runs inline
  bool bumps_versions = false;   // in place on a list: nothing above the kernel counts the writes for autograd
  bool tries_one_thread = false; // its small kernels wake all threads, and may not need to; see one_thread.h
  ProductKind product = ProductKind::None;
  const TileForm* tile_form = nullptr; // for an element-wise operator that regions can hold; see tile_region.h
  int8_t host_result = -1;             // this return stays on the CPU
  uint32_t random_draws = 1;           // how many random operators it stands for

  std::optional<c10::FunctionSchema> foreign_schema; // when `foreign`

  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> fallbacks{0};

  bool has_host_kernel() const;
  bool is_mutable(uint32_t arg) const { return arg < 64 && ((mutable_args >> arg) & 1) != 0; }
  bool takes_host_tensor(uint32_t arg) const { return foreign || (arg < 64 && ((host_args >> arg) & 1) != 0); }
  bool is_free_scalar(uint32_t arg) const { return arg < 64 && ((free_scalars >> arg) & 1) != 0; }
};

// The entry of an operator; entries live until the process ends.
OpEntry& op_entry(const c10::OperatorHandle& op);

// Visits every entry made so far, in the order in which they were made.
void for_each_op_entry(const std::function<void(OpEntry&)>& visit);

} // namespace neuron::eager
