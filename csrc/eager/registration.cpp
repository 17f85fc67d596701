// What is registered with PyTorch's dispatcher for neuron. No logic here: each line names where it is.
#include "eager/registration.h"

#include "device/config.h"
#include "eager/boxed_kernel.h"
#include "eager/copy.h"
#include "eager/factories.h"
#include "eager/other_layouts.h"
#include "eager/policy.h"
#include "eager/typed_kernels.h"
#include "memory/kernel_memory.h"
#include "memory/storage.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <memory>
#include <string>

namespace neuron::eager {

namespace {

// `p.data = other` between CPU and neuron: what module.to("neuron") does, so that tied parameters stay tied and
// optimizers keep theirs.
bool can_swap_data(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided && (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return dense(self) && dense(from);
}

} // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("_lazy_clone", &clone_now);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_", &set_empty);
  m.impl("_has_compatible_shallow_copy_type", &can_swap_data);

  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);

  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

// A question about two tensors, not a computation: autograd has no part in it, and asks views what it may not ask them.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", torch::CppFunction::makeFallthrough());
}

namespace {

// Operators that have a composite kernel would never reach the fallback. Those that the CPU has a kernel of its own for
// must take it, or their results would be rounded differently; others are launched whole because their parts need not
// be seen.
void register_composites() {
  // Never destroyed: deregistering at exit would race with what still runs.
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  register_typed_kernels(*library);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string base = name.name.substr(6);
    const bool explicit_composite =
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    const bool implicit_composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const bool own_host_kernel = op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    if (((explicit_composite || implicit_composite) && own_host_kernel) ||
        (explicit_composite && launch_whole(base, name.overload_name))) {
      const std::string full = name.overload_name.empty() ? base : base + "." + name.overload_name;
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>());
    }
  }
}

} // namespace

void install() {
  static bool installed = false;
  if (installed) {
    return;
  }
  installed = true;
  register_storage_impl();
  memory::install_host_allocator_hook();
  // About a thousand operators, and several fallbacks for all of them: too slow for an import.
  config::call_at_start([] {
    register_composites();
    refuse_other_layouts();
  });
}

} // namespace neuron::eager
