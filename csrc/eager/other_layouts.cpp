// Sparse, nested and quantized tensors: neuron carries strided ones. What has no kernel says so by name, and compressed
// sparse tensors, which PyTorch would build from strided parts and then be unable to use, are refused when made.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>

namespace neuron::eager {

namespace {

template <class Layout>
void refuse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  const auto& name = op.operator_name();
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Could not run '", name.name, name.overload_name.empty() ? "" : ".", name.overload_name,
      "' on neuron: ", Layout::name, " tensors are not supported. Use dense tensors there, or keep this part on cpu.");
}

struct Sparse {
  static constexpr const char* name = "sparse";
};
struct Nested {
  static constexpr const char* name = "nested (strided layout)";
};
struct Quantized {
  static constexpr const char* name = "quantized";
};

template <class Layout>
torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse<Layout>>();
}

} // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(refusal<Sparse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(refusal<Sparse>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(refusal<Nested>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(refusal<Quantized>());
}

// The layout that is asked for decides where PyTorch sends this one.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_compressed_tensor_unsafe", refusal<Sparse>());
}

} // namespace neuron::eager
