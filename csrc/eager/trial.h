// Trials: whether two ways of computing an operator give the same bits, found out on made-up values.
//
// Orders of additions are what differs, and they show in the last bits of float32. In a plain random sum rounded to
// bfloat16 these are gone, so there are also values whose sums nearly cancel: what is left of those are the roundings.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

namespace neuron::eager {

class TrialValues {
 public:
  enum class Kind : uint8_t { Random, Cancelling };

  // Draws from a generator of its own: the user's numbers must not depend on trials.
  TrialValues();
  // The arguments with other values in their floating-point tensors. Integers may be indices, and numbers without
  // dimensions may be what a kernel decides by: these stay. `first_is_addend`: the first tensor is added to products of
  // the others. Throws for a dtype without random values.
  torch::jit::Stack like(const torch::jit::Stack& arguments, Kind kind, bool first_is_addend = false);

  const at::Generator& generator() const { return generator_; }

 private:
  at::Tensor random_like(const at::Tensor& tensor, Kind kind);

  at::Generator generator_;
};

// How many numbers the tensors hold.
int64_t count_numbers(const torch::jit::Stack& values);
// The tensors that the kernel returned and copies of those it was given, which it may have written.
std::vector<at::Tensor> run_on_copies(
    const torch::jit::Stack& arguments, const std::function<void(torch::jit::Stack&)>& kernel);
bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

} // namespace neuron::eager
