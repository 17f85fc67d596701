// Whether the steps of an operator over tiles give the bits of PyTorch's kernel; part of a signature's record.
#pragma once

#include "kernels/tile_op.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace neuron::eager {

struct TileForm;

class TileChoice {
 public:
  // Finds out, once. What is found holds for all calls of the operator whose arguments are of the same kinds, and is
  // known to other signatures. Call on the thread that is to run the kernel, outside of any KernelMemory scope.
  void find_out(const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments);
  bool allowed() const noexcept { return verdict_.load(std::memory_order_relaxed) >= 0; }
  // How the steps have to compute; when allowed.
  kernels::TileVariant variant() const noexcept;
  // For a signature whose tiles were found to differ.
  void forbid() noexcept { verdict_.store(kDiffers, std::memory_order_relaxed); }

  // What was found out so far, by operator and kinds of arguments: whether tiles may be used.
  static std::unordered_map<std::string, bool> known();

 private:
  static constexpr int8_t kUnknown = -1;
  static constexpr int8_t kDiffers = -2;

  std::atomic<int8_t> verdict_{kUnknown}; // or the number of the variant
};

} // namespace neuron::eager
