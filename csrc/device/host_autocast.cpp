// PyTorch does not publish the CPU's lists, but the dispatcher knows which operators have an autocast kernel for the
// CPU, and all but the few named here are computed in float32.
#include "device/host_autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

namespace neuron {

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

std::mutex g_mutex;

// Never destroyed: at exit the dispatcher may be gone first.
std::unique_ptr<torch::Library>& rules() {
  static auto& library = *new std::unique_ptr<torch::Library>;
  return library;
}

const std::unordered_set<std::string>& in_lower_precision() {
  static const auto* const names = new std::unordered_set<std::string>{
      "_addmm_activation",
      "_convolution",
      "_native_multi_head_attention",
      "addbmm",
      "addmm",
      "baddbmm",
      "bmm",
      "conv1d",
      "conv2d",
      "conv3d",
      "conv_tbc",
      "conv_transpose1d",
      "conv_transpose2d",
      "conv_transpose3d",
      "linalg_vecdot",
      "linear",
      "matmul",
      "mkldnn_rnn_layer",
      "mm",
      "prelu",
      "scaled_dot_product_attention"};
  return *names;
}

const std::unordered_set<std::string>& promoted() {
  static const auto* const names = new std::unordered_set<std::string>{"cat", "index_copy", "stack"};
  return *names;
}

void cast_tensors(c10::ScalarType dtype, c10::IValue& value) {
  if (value.isTensor()) {
    value = at::autocast::cached_cast(dtype, value.toTensor(), kDevice);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> cast;
    for (const auto& item : value.toListRef()) {
      cast.push_back(at::autocast::cached_cast(dtype, item.toTensor(), kDevice));
    }
    value = std::move(cast);
  }
}

void call_in(c10::ScalarType dtype, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  for (auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    cast_tensors(dtype, const_cast<c10::IValue&>(value));
  }
  op.callBoxed(stack);
}

void lower_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_in(at::autocast::get_lower_precision_fp_from_device_type(kDevice), op, stack);
}

void float32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_in(at::kFloat, op, stack);
}

void widest(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto dtype = at::autocast::get_lower_precision_fp_from_device_type(kDevice);
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) {
      dtype = at::autocast::prioritize(dtype, value.toTensor(), kDevice);
    } else if (value.isTensorList()) {
      for (const auto& item : value.toListRef()) {
        dtype = at::autocast::prioritize(dtype, item.toTensor(), kDevice);
      }
    }
  }
  call_in(dtype, op, stack);
}

torch::CppFunction rule_for(const std::string& base_name) {
  if (in_lower_precision().contains(base_name)) {
    return torch::CppFunction::makeFromBoxedFunction<&lower_precision>();
  }
  return promoted().contains(base_name) ? torch::CppFunction::makeFromBoxedFunction<&widest>()
                                        : torch::CppFunction::makeFromBoxedFunction<&float32>();
}

// That kernels are overridden is what this is for.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

std::unique_ptr<torch::Library> host_rules() {
  NoWarnings quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !op->hasSchema() || !name.name.starts_with("aten::")) {
      continue;
    }
    const auto base = name.name.substr(6);
    const auto full = name.overload_name.empty() ? base : base + "." + name.overload_name;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) {
      library->impl(full.c_str(), rule_for(base));
    } else if (op->hasKernelForDispatchKey(c10::DispatchKey::AutocastPrivateUse1)) {
      library->impl(full.c_str(), torch::CppFunction::makeFallthrough());
    }
  }
  return library;
}

} // namespace

bool host_autocast() noexcept {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return rules() != nullptr;
}

void set_host_autocast(bool enabled) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (enabled != (rules() != nullptr)) {
    rules() = enabled ? host_rules() : nullptr; // without ours, PyTorch's dispatcher takes the kernels before again
  }
}

} // namespace neuron
