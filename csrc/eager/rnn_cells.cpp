// LSTMCell and GRUCell. PyTorch sends PrivateUse1 to the fused cells that it has for cuda; here they are composites of
// dispatched operators, differentiated part by part.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace neuron::eager {

namespace {

at::Tensor plus_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

// cuda's kernels also return what their backward needs; ours needs nothing.
at::Tensor no_workspace(const at::Tensor& like) {
  return at::empty({0}, like.options());
}

// input_gates, hidden_gates: [B, 4H]; cx: [B, H]. Returns the new h and c, [B, H].
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const auto gates = plus_bias(hidden_gates, hidden_bias) + plus_bias(input_gates, input_bias);
  const auto parts = gates.chunk(4, 1);
  const auto cy = at::sigmoid(parts[1]) * cx + at::sigmoid(parts[0]) * at::tanh(parts[2]);
  return {at::sigmoid(parts[3]) * at::tanh(cy), cy, no_workspace(cx)};
}

// input_gates, hidden_gates: [B, 3H]; hx: [B, H]. Returns the new h, [B, H].
std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const auto from_input = plus_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = plus_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = at::sigmoid(from_hidden[0] + from_input[0]);
  const auto update = at::sigmoid(from_hidden[1] + from_input[1]);
  const auto candidate = at::tanh(from_input[2] + from_hidden[2] * reset);
  return {(hx - candidate) * update + candidate, no_workspace(hx)};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
}

} // namespace neuron::eager
