// RNN, GRU and LSTM layers as the CPU computes them: oneDNN's fused LSTM where the CPU takes it, else step by step with
// the inputs of all steps projected at once.
#include "eager/dispatch_stub.h"
#include "eager/rnn_cells.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace neuron::eager {

namespace rnn {

namespace {

// What a stack of layers is made of, in the order of PyTorch's arguments: layer by layer, forward before backward.
struct Stack {
  Cell cell;
  std::vector<Weights> weights;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
};

std::vector<Weights> parse_weights(at::TensorList params, bool has_biases, bool has_projections) {
  const size_t each = 2 + (has_biases ? 2 : 0) + (has_projections ? 1 : 0);
  TORCH_CHECK(params.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> weights;
  for (size_t i = 0; i < params.size(); i += each) {
    Weights& one = weights.emplace_back(Weights{params[i], params[i + 1], {}, {}, {}});
    if (has_biases) {
      one.input_bias = params[i + 2];
      one.hidden_bias = params[i + 3];
    }
    if (has_projections) {
      one.projection = params[i + each - 1];
    }
  }
  return weights;
}

State rows_of(const State& state, int64_t from, int64_t to) {
  return {state.h.narrow(0, from, to - from), state.c.defined() ? state.c.narrow(0, from, to - from) : at::Tensor()};
}

State concatenated(const std::vector<State>& states) {
  std::vector<at::Tensor> h;
  std::vector<at::Tensor> c;
  for (const auto& state : states) {
    h.push_back(state.h);
    if (state.c.defined()) {
      c.push_back(state.c);
    }
  }
  return {at::cat(h, 0), c.empty() ? at::Tensor() : at::cat(c, 0)};
}

// Padded batches: input [T, B, F], output [T, B, P].
struct Padded {
  std::pair<at::Tensor, State> run(
      Cell cell, const at::Tensor& input, State state, const Weights& weights, bool backwards) const {
    auto steps = project_input(input, weights).unbind(0);
    TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
    if (backwards) {
      std::reverse(steps.begin(), steps.end());
    }
    std::vector<at::Tensor> outputs;
    for (const auto& gates : steps) {
      state = step(cell, {gates, true}, state, weights);
      outputs.push_back(state.h);
    }
    if (backwards) {
      std::reverse(outputs.begin(), outputs.end());
    }
    return {at::stack(outputs, 0), std::move(state)};
  }
};

// Packed sequences: input [sum of lengths, F] with the number of sequences that reach each step, which never grows.
struct Packed {
  explicit Packed(const at::Tensor& batch_sizes) : sizes(batch_sizes.size(0)) {
    TORCH_CHECK(
        batch_sizes.is_cpu(), "batch_sizes of a packed sequence must be on the CPU, not on ", batch_sizes.device());
    std::copy_n(batch_sizes.const_data_ptr<int64_t>(), sizes.size(), sizes.begin());
  }

  std::pair<at::Tensor, State> run(
      Cell cell, const at::Tensor& input, const State& state, const Weights& weights, bool backwards) const {
    const auto gates = project_input(input, weights);
    return backwards ? run_backwards(cell, gates, state, weights) : run_forwards(cell, gates, state, weights);
  }

  // Then it is no more than a padded batch, and the CPU takes it for one.
  bool all_run_to_the_end() const { return !sizes.empty() && sizes.front() == sizes.back(); }

  std::vector<int64_t> sizes;

 private:
  // Sequences that end leave with their state; the longest come first.
  std::pair<at::Tensor, State> run_forwards(
      Cell cell, const at::Tensor& gates, State state, const Weights& weights) const {
    std::vector<at::Tensor> outputs;
    std::vector<State> ended;
    int64_t offset = 0;
    int64_t running = sizes.front();
    for (const int64_t size : sizes) {
      auto input = gates.narrow(0, offset, size);
      offset += size;
      if (size < running) {
        ended.push_back(rows_of(state, size, running));
        state = rows_of(state, 0, size);
      }
      running = size;
      state = step(cell, {std::move(input), true}, state, weights);
      outputs.push_back(state.h);
    }
    ended.push_back(std::move(state));
    std::reverse(ended.begin(), ended.end());
    auto output = at::cat(outputs, 0);
    return {std::move(output), concatenated(ended)};
  }

  // Sequences join with their initial state when their last step is reached.
  std::pair<at::Tensor, State> run_backwards(
      Cell cell, const at::Tensor& gates, const State& initial, const Weights& weights) const {
    std::vector<at::Tensor> outputs;
    int64_t offset = gates.size(0);
    int64_t running = sizes.back();
    State state = rows_of(initial, 0, running);
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      if (*size > running) {
        state = concatenated({state, rows_of(initial, running, *size)});
      }
      offset -= *size;
      running = *size;
      state = step(cell, {gates.narrow(0, offset, *size), true}, state, weights);
      outputs.push_back(state.h);
    }
    std::reverse(outputs.begin(), outputs.end());
    return {at::cat(outputs, 0), std::move(state)};
  }
};

template <class Sequence>
std::pair<at::Tensor, std::vector<State>> run_stack(
    const Stack& stack, const Sequence& sequence, at::Tensor input, const std::vector<State>& initial) {
  const size_t directions = stack.bidirectional ? 2 : 1;
  TORCH_CHECK(
      initial.size() == static_cast<size_t>(stack.num_layers) * directions,
      "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(stack.weights.size() == initial.size(), "Expected more weights in stacked_rnn");
  std::vector<State> last;
  for (int64_t layer = 0; layer < stack.num_layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t i = static_cast<size_t>(layer) * directions + direction;
      auto [output, state] = sequence.run(stack.cell, input, initial[i], stack.weights[i], direction == 1);
      outputs.push_back(std::move(output));
      last.push_back(std::move(state));
    }
    input = directions == 1 ? outputs[0] : at::cat(outputs, outputs[0].dim() - 1);
    if (stack.dropout != 0 && stack.train && layer < stack.num_layers - 1) {
      input = at::dropout(input, stack.dropout, /*train=*/true);
    }
  }
  return {std::move(input), std::move(last)};
}

std::vector<State> states_of(const at::Tensor& hx, const at::Tensor& cx) {
  const auto h = hx.unbind(0);
  const auto c = cx.defined() ? cx.unbind(0) : std::vector<at::Tensor>(h.size());
  std::vector<State> states;
  for (size_t i = 0; i < h.size(); ++i) {
    states.push_back({h[i], c[i]});
  }
  return states;
}

at::Tensor stacked_h(const std::vector<State>& states) {
  std::vector<at::Tensor> h;
  for (const auto& state : states) {
    h.push_back(state.h);
  }
  return at::stack(h, 0);
}

at::Tensor stacked_c(const std::vector<State>& states) {
  std::vector<at::Tensor> c;
  for (const auto& state : states) {
    c.push_back(state.c);
  }
  return at::stack(c, 0);
}

// ---- tanh, relu and GRU ---------------------------------------------------------------------------------------------

template <Cell cell>
std::tuple<at::Tensor, at::Tensor> padded_layers(
    const at::Tensor& input, const at::Tensor& hx, at::TensorList params, bool has_biases, int64_t num_layers,
    double dropout, bool train, bool bidirectional, bool batch_first) {
  const auto time_first = batch_first ? input.transpose(0, 1) : input;
  const Stack stack{cell, parse_weights(params, has_biases, false), num_layers, dropout, train, bidirectional};
  auto [output, last] = run_stack(stack, Padded{}, time_first, states_of(hx, {}));
  auto h = stacked_h(last);
  if (batch_first) {
    output.transpose_(0, 1);
  }
  return {std::move(output), std::move(h)};
}

template <Cell cell>
std::tuple<at::Tensor, at::Tensor> packed_layers(
    const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional) {
  const Stack stack{cell, parse_weights(params, has_biases, false), num_layers, dropout, train, bidirectional};
  auto [output, last] = run_stack(stack, Packed(batch_sizes), data, states_of(hx, {}));
  auto h = stacked_h(last);
  return {std::move(output), std::move(h)};
}

// ---- LSTM -----------------------------------------------------------------------------------------------------------

void check_lstm_state(at::TensorList state, int64_t num_layers, bool bidirectional) {
  TORCH_CHECK(state.size() == 2, "lstm expects two hidden states");
  const int64_t layers = num_layers * (bidirectional ? 2 : 1);
  for (size_t i = 0; i < 2; ++i) {
    const char* const name = i == 0 ? "h_0" : "c_0";
    TORCH_CHECK(
        state[i].dim() == 3, "For batched 3-D input, hx[", i, "] (", name, ") should be 3-D but got ", state[i].dim(),
        "-D tensor");
    TORCH_CHECK(
        state[i].size(0) == layers, "Expected ", name, " size(0) to be ", layers,
        " (num_layers * num_directions), but got ", state[i].size(0));
  }
}

bool onednn_has(const char* dtype_query) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(dtype_query, "").typed<bool()>().call();
}

bool host_would_fuse(const at::Tensor& input, bool has_projections) {
  if (!at::globalContext().userEnabledMkldnn() || input.numel() == 0 || has_projections) {
    return false;
  }
  switch (input.scalar_type()) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return onednn_has("mkldnn::_is_mkldnn_bf16_supported");
    case at::kHalf:
      return !at::GradMode::is_enabled() && onednn_has("mkldnn::_is_mkldnn_fp16_supported");
    default:
      return false;
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_lstm(
    const at::Tensor& input, at::TensorList state, at::TensorList params, bool has_biases, int64_t num_layers,
    double dropout, bool train, bool bidirectional, bool batch_first) {
  // The CPU's own composite: written in dispatched operators, so that on neuron tensors it launches on neuron.
  at::Tensor output;
  at::Tensor h;
  at::Tensor c;
  at::native::lstm_mkldnn_stub(
      at::kCPU, output, h, c, input, state, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  return {std::move(output), std::move(h), std::move(c)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input, at::TensorList state, at::TensorList params, bool has_biases, int64_t num_layers,
    double dropout, bool train, bool bidirectional, bool batch_first) {
  check_lstm_state(state, num_layers, bidirectional);
  const bool has_projections = state[0].size(2) != state[1].size(2);
  if (host_would_fuse(input, has_projections)) {
    return fused_lstm(input, state, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const auto time_first = batch_first ? input.transpose(0, 1) : input;
  const Stack stack{Cell::Lstm,   parse_weights(params, has_biases, has_projections), num_layers, dropout, train,
                    bidirectional};
  auto [output, last] = run_stack(stack, Padded{}, time_first, states_of(state[0], state[1]));
  auto h = stacked_h(last);
  auto c = stacked_c(last);
  return {batch_first ? output.transpose(0, 1) : output, std::move(h), std::move(c)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> packed_lstm(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList state, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional) {
  check_lstm_state(state, num_layers, bidirectional);
  const bool has_projections = state[0].size(2) != state[1].size(2);
  const Packed packed(batch_sizes);
  if (packed.all_run_to_the_end() && host_would_fuse(data, has_projections)) {
    const auto steps = static_cast<int64_t>(packed.sizes.size());
    auto [output, h, c] = fused_lstm(
        data.view({steps, packed.sizes.front(), data.size(-1)}), state, params, has_biases, num_layers, dropout, train,
        bidirectional, /*batch_first=*/false);
    return {output.view({data.size(0), output.size(-1)}), std::move(h), std::move(c)};
  }
  const Stack stack{Cell::Lstm,   parse_weights(params, has_biases, has_projections), num_layers, dropout, train,
                    bidirectional};
  auto [output, last] = run_stack(stack, packed, data, states_of(state[0], state[1]));
  auto h = stacked_h(last);
  auto c = stacked_c(last);
  return {std::move(output), std::move(h), std::move(c)};
}

void register_layers(torch::Library& m) {
  m.impl("rnn_tanh.input", &padded_layers<Cell::Tanh>);
  m.impl("rnn_tanh.data", &packed_layers<Cell::Tanh>);
  m.impl("rnn_relu.input", &padded_layers<Cell::Relu>);
  m.impl("rnn_relu.data", &packed_layers<Cell::Relu>);
  m.impl("gru.input", &padded_layers<Cell::Gru>);
  m.impl("gru.data", &packed_layers<Cell::Gru>);
  m.impl("lstm.input", &lstm);
  m.impl("lstm.data", &packed_lstm);
}

} // namespace

// Composite: differentiated and autocast part by part.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  register_layers(m);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_layers(m);
}

} // namespace rnn

} // namespace neuron::eager
