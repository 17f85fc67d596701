// One step of a recurrent layer, in the CPU's operations and in their order, so that results are rounded the same and
// gradients are added up the same. PyTorch sends PrivateUse1 to the fused cells that it has for cuda.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace neuron::eager::rnn {

enum class Cell : uint8_t { Tanh, Relu, Lstm, Gru };

// H hidden units, F input features, G gates (1, 4 or 3), P projected units (H without projection).
struct Weights {
  at::Tensor input;       // [G*H, F]
  at::Tensor hidden;      // [G*H, P]
  at::Tensor input_bias;  // [G*H] or undefined
  at::Tensor hidden_bias; // [G*H] or undefined
  at::Tensor projection;  // [P, H] or undefined
};

struct State {
  at::Tensor h; // [B, P]
  at::Tensor c; // [B, H]; undefined except for LSTM
};

// A step's input, [B, F], or what `Weights::input` already made of it, [B, G*H].
struct StepInput {
  at::Tensor tensor;
  bool projected = false;
};

at::Tensor project_input(const at::Tensor& input, const Weights& weights);
State step(Cell cell, const StepInput& input, const State& state, const Weights& weights);

} // namespace neuron::eager::rnn
