// scaled_dot_product_attention: neuron takes the host's fused kernels where the CPU would.
#include "eager/dispatch_stub.h"
#include "eager/neuron_tensor.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

namespace neuron::eager {

namespace {

// What the CPU would see: sizes, strides, dtype and whether a gradient is wanted. No value is read, so nothing waits.
at::Tensor stand_in(const at::Tensor& tensor) {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage() || impl.has_symbolic_sizes_strides()) {
    return tensor; // a transform's or a tracer's wrapper
  }
  auto view = host_view(tensor);
  if (tensor.requires_grad()) {
    view.set_requires_grad(true);
  }
  return view;
}

int64_t fused_sdp_choice(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const auto host_mask =
      mask.has_value() && mask->defined() ? std::optional<at::Tensor>(stand_in(*mask)) : std::nullopt;
  return at::native::_fused_sdp_choice_cpp(
      stand_in(query), stand_in(key), stand_in(value), host_mask, dropout_p, is_causal, scale, enable_gqa);
}

} // namespace

} // namespace neuron::eager

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::eager::fused_sdp_choice)
} // namespace at::native

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &neuron::eager::fused_sdp_choice);
}
