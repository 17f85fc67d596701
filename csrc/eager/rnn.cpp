// LSTM through oneDNN's fused layers wherever the CPU takes them.
#include "eager/dispatch_stub.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/lstm_native.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

namespace neuron::eager {

namespace {

// The CPU's rule for float32. For bf16 and fp16 it asks the processor; there the layer-by-layer form is taken.
bool host_would_fuse(const at::Tensor& input, at::TensorList state, at::TensorList params) {
  const bool has_projections = state[0].sym_size(2) != state[1].sym_size(2);
  return at::globalContext().userEnabledMkldnn() && input.scalar_type() == at::kFloat && input.numel() != 0 &&
         !has_projections &&
         std::all_of(params.begin(), params.end(), [](const at::Tensor& p) { return p.is_privateuseone(); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input, at::TensorList state, at::TensorList params, bool has_biases, int64_t num_layers,
    double dropout_p, bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(state.size() == 2, "lstm expects two hidden states");
  if (host_would_fuse(input, state, params)) {
    // The CPU's own composite: written in dispatched operators, so that on neuron tensors it launches on neuron.
    at::Tensor output;
    at::Tensor hy;
    at::Tensor cy;
    at::native::lstm_mkldnn_stub(
        at::kCPU, output, hy, cy, input, state, params, has_biases, num_layers, dropout_p, train, bidirectional,
        batch_first);
    return {std::move(output), std::move(hy), std::move(cy)};
  }
  return at::native::lstm(input, state, params, has_biases, num_layers, dropout_p, train, bidirectional, batch_first);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", &lstm);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("lstm.input", &lstm);
}

} // namespace neuron::eager
