// Whether the steps of an operator over tiles give the bits of PyTorch's kernel; part of a signature's record.
#pragma once

#include "kernels/tile_op.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>

namespace neuron::eager {

struct TileForm;

class TileChoice {
 public:
  // How the steps of this call have to compute; nothing: tiles would give other bits. A signature leaves out the values
  // and the types of numbers, on which that can depend, so it is asked for at each call. What is found out holds for
  // all calls of the operator whose arguments are of the same kinds. Call on the thread that is to run the kernel,
  // outside of any KernelMemory scope.
  std::optional<kernels::TileVariant> variant_for(
      const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) const;
  // For a signature whose tiles were found to differ.
  void forbid() noexcept { forbidden_.store(true, std::memory_order_relaxed); }

  // What was found out so far, by operator and kinds of arguments: whether tiles may be used.
  static std::unordered_map<std::string, bool> known();

 private:
  std::atomic<bool> forbidden_{false};
};

} // namespace neuron::eager
