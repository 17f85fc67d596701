// Sparse, nested and quantized tensors: neuron carries strided ones. What has no kernel says so by name, and compressed
// sparse tensors, which PyTorch would build from strided parts and then be unable to use, are refused when made.
#include "eager/other_layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>
#include <utility>

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

// Never destroyed: deregistering at exit would race with what still runs.
void refuse_all(c10::DispatchKey key, torch::CppFunction refusal) {
  auto* const library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(std::move(refusal));
}

} // namespace

void refuse_other_layouts() {
  refuse_all(c10::DispatchKey::SparsePrivateUse1, refusal<Sparse>());
  refuse_all(c10::DispatchKey::SparseCsrPrivateUse1, refusal<Sparse>());
  refuse_all(c10::DispatchKey::NestedTensorPrivateUse1, refusal<Nested>());
  refuse_all(c10::DispatchKey::QuantizedPrivateUse1, refusal<Quantized>());
}

// The layout that is asked for decides where PyTorch sends this one.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_compressed_tensor_unsafe", refusal<Sparse>());
}

} // namespace neuron::eager
