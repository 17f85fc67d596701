#include "eager/rnn_cells.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>

namespace neuron::eager {

namespace rnn {

namespace {

at::Tensor project_hidden(const at::Tensor& h, const Weights& weights) {
  return at::linear(h, weights.hidden, weights.hidden_bias);
}

at::Tensor gates_of(const StepInput& input, const Weights& weights) {
  return input.projected ? input.tensor : project_input(input.tensor, weights);
}

at::Tensor sum_of_gates(const StepInput& input, const at::Tensor& h, const Weights& weights) {
  auto gates = project_hidden(h, weights);
  return gates.add_(gates_of(input, weights));
}

State lstm_step(const StepInput& input, const State& state, const Weights& weights) {
  const auto gates = sum_of_gates(input, state.h, weights).unsafe_chunk(4, 1);
  auto in = gates[0];
  auto forget = gates[1];
  auto candidate = gates[2];
  auto out = gates[3];
  in.sigmoid_();
  forget.sigmoid_();
  candidate.tanh_();
  out.sigmoid_();
  auto kept = forget * state.c;
  auto c = kept.add_(in * candidate);
  auto h = out * c.tanh();
  if (weights.projection.defined()) {
    h = at::matmul(h, weights.projection.t());
  }
  return {std::move(h), std::move(c)};
}

State gru_step(const StepInput& input, const State& state, const Weights& weights) {
  const auto from_input = gates_of(input, weights).unsafe_chunk(3, 1);
  const auto from_hidden = project_hidden(state.h, weights).unsafe_chunk(3, 1);
  auto reset = from_hidden[0].add_(from_input[0]).sigmoid_();
  auto update = from_hidden[1].add_(from_input[1]).sigmoid_();
  auto fresh = from_input[2].add(from_hidden[2].mul_(reset)).tanh_();
  return {(state.h - fresh).mul_(update).add_(fresh), {}};
}

} // namespace

at::Tensor project_input(const at::Tensor& input, const Weights& weights) {
  return at::linear(input, weights.input, weights.input_bias);
}

State step(Cell cell, const StepInput& input, const State& state, const Weights& weights) {
  switch (cell) {
    case Cell::Lstm:
      return lstm_step(input, state, weights);
    case Cell::Gru:
      return gru_step(input, state, weights);
    case Cell::Tanh:
      return {at::tanh(sum_of_gates(input, state.h, weights)), {}};
    case Cell::Relu:
      break;
  }
  return {at::relu(sum_of_gates(input, state.h, weights)), {}};
}

} // namespace rnn

namespace {

using Bias = std::optional<at::Tensor>;

rnn::Weights checked_weights(
    int64_t gates, const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih, const at::Tensor& w_hh,
    const Bias& b_ih, const Bias& b_hh) {
  const int64_t units = w_hh.size(1);
  TORCH_CHECK(
      input.size(1) == w_ih.size(1), "input has inconsistent input_size: got ", input.size(1), " expected ",
      w_ih.size(1));
  TORCH_CHECK(
      w_ih.size(0) == gates * units, "weight_ih first dim must be ", gates, " * hidden_size = ", gates * units,
      ", but got ", w_ih.size(0));
  TORCH_CHECK(
      w_hh.size(0) == gates * units, "weight_hh first dim must be ", gates, " * hidden_size = ", gates * units,
      ", but got ", w_hh.size(0));
  TORCH_CHECK(
      input.size(0) == hx.size(0), "Input batch size ", input.size(0), " doesn't match hidden0 batch size ",
      hx.size(0));
  TORCH_CHECK(hx.size(1) == units, "hidden0 has inconsistent hidden_size: got ", hx.size(1), ", expected ", units);
  return {w_ih, w_hh, b_ih.value_or(at::Tensor()), b_hh.value_or(at::Tensor()), {}};
}

std::tuple<at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input, at::TensorList hx, const at::Tensor& w_ih, const at::Tensor& w_hh, const Bias& b_ih,
    const Bias& b_hh) {
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  const auto weights = checked_weights(4, input, hx[0], w_ih, w_hh, b_ih, b_hh);
  TORCH_CHECK(
      input.size(0) == hx[1].size(0), "Input batch size ", input.size(0), " doesn't match hidden1 batch size ",
      hx[1].size(0));
  auto state = rnn::step(rnn::Cell::Lstm, {input}, {hx[0], hx[1]}, weights);
  return {std::move(state.h), std::move(state.c)};
}

at::Tensor gru_cell(
    const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih, const at::Tensor& w_hh, const Bias& b_ih,
    const Bias& b_hh) {
  const auto weights = checked_weights(3, input, hx, w_ih, w_hh, b_ih, b_hh);
  return rnn::step(rnn::Cell::Gru, {input}, {hx, {}}, weights).h;
}

} // namespace

// Composite: differentiated and autocast part by part.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm_cell", &lstm_cell);
  m.impl("gru_cell", &gru_cell);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("lstm_cell", &lstm_cell);
  m.impl("gru_cell", &gru_cell);
}

} // namespace neuron::eager
