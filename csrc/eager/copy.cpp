#include "eager/copy.h"

#include "device/config.h"
#include "device/current.h"
#include "device/sync_debug.h"
#include "eager/boxed_kernel.h"
#include "eager/factories.h"
#include "eager/narrowing.h"
#include "eager/neuron_tensor.h"
#include "memory/guard_pages.h"
#include "memory/storage.h"
#include "stream/stream_pool.h"
#include "trace/inline_span.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace neuron::eager {

namespace {

// Host values up to this size are copied aside and sent in stream order; larger ones wait until the memory is free.
constexpr size_t kStagedBytes = 256 * 1024;

LaunchSource copy_source(const char* name) {
  LaunchSource source;
  source.name = name;
  if (trace::enabled()) {
    source.correlation = trace::current_correlation();
  }
  return source;
}

trace::InlineSpan inline_span(const char* name, const at::Tensor& on_device) {
  const Stream& stream = current_stream(on_device.device().index());
  return {name, stream.device(), stream.id()};
}

// Copies between CPU tensors (one of them over device memory), on the calling thread.
void host_copy(const at::Tensor& to, const at::Tensor& from) {
  memory::DeviceAccess access;
  c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  to.copy_(from);
}

void copy_in_stream_order(Stream& stream, const char* name, at::Tensor to, at::Tensor from) {
  stream.submit([to = std::move(to), from = std::move(from)] { host_copy(to, from); }, copy_source(name));
}

void within_device(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{self, source, non_blocking};
  boxed_kernel(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
}

void between_devices(at::Tensor& self, const at::Tensor& source) {
  Stream& from = current_stream(source.device().index());
  Stream& to = current_stream(self.device().index());
  // As on cuda: the copy runs on the source's stream, after what the target's stream was asked to do, and before what
  // it is asked to do next.
  from.wait_stream(to);
  memory::record_stream(self.storage().data_ptr(), from);
  uint64_t seq = 0;
  {
    Stream::Submission submission(from);
    seq = from.submitted() + 1;
    mark_use(storage_of(*source.unsafeGetTensorImpl()), from, seq);
    mark_use(storage_of(*self.unsafeGetTensorImpl()), from, seq);
    copy_in_stream_order(from, "neuron::copy_device_to_device", host_view(self), host_view(source));
  }
  // Not under the lock of `from`: a copy in the other direction takes the two locks in the other order.
  to.wait_launch(from, seq, "neuron::wait_stream");
}

void from_host(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  auto& storage = storage_of(*self.unsafeGetTensorImpl());
  if (C10_UNLIKELY(sync_debug_mode() != SyncDebugMode::Off) && source.nbytes() > kStagedBytes &&
      !(non_blocking && source.is_pinned())) {
    report_synchronizing("copy from the host");
  }
  if (tracked(storage) != nullptr && !unused(storage) && !config::get().launch_blocking && !narrowing()) {
    const bool pinned = non_blocking && source.is_pinned();
    if (pinned || source.nbytes() <= kStagedBytes) {
      Stream& stream = current_stream(self.device().index());
      at::Tensor values = pinned ? source : at::clone(source, c10::MemoryFormat::Preserve);
      Stream::Submission submission(stream);
      mark_use(storage, stream, stream.submitted() + 1);
      copy_in_stream_order(stream, "neuron::copy_host_to_device", host_view(self), std::move(values));
      return;
    }
  }
  wait_until_unused(storage);
  const auto span = inline_span("neuron::copy_host_to_device", self);
  const at::Tensor target = host_view(self);
  host_copy(target, source);
  if (C10_UNLIKELY(narrowing())) {
    memory::DeviceAccess access;
    narrow(target);
  }
}

void to_host(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  auto& storage = storage_of(*source.unsafeGetTensorImpl());
  if (non_blocking && tracked(storage) != nullptr && !unused(storage) && self.is_pinned()) {
    Stream& stream = current_stream(source.device().index());
    Stream::Submission submission(stream);
    mark_use(storage, stream, stream.submitted() + 1);
    copy_in_stream_order(stream, "neuron::copy_device_to_host", self, host_view(source));
    return;
  }
  if (C10_UNLIKELY(sync_debug_mode() != SyncDebugMode::Off) && !(non_blocking && self.is_pinned())) {
    report_synchronizing("copy to the host");
  }
  wait_until_unused(storage);
  const auto span = inline_span("neuron::copy_device_to_host", source);
  host_copy(self, host_view(source));
}

} // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) {
    return self;
  }
  TORCH_CHECK(
      !self._is_zerotensor(),
      "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, if you want a mutable zero tensor.");
  if (source._is_zerotensor()) {
    return self.zero_();
  }
  // Here, since the copy itself may run later.
  const auto shape = at::infer_size_dimvector(self.sizes(), source.sizes());
  TORCH_CHECK(
      c10::IntArrayRef(shape) == self.sizes(), "output with shape ", self.sizes(),
      " doesn't match the broadcast shape ", c10::IntArrayRef(shape));
  const bool to_neuron = self.is_privateuseone();
  const bool from_neuron = source.is_privateuseone();
  TORCH_CHECK_NOT_IMPLEMENTED(
      (to_neuron || self.is_cpu()) && (from_neuron || source.is_cpu()) && self.layout() == c10::kStrided &&
          source.layout() == c10::kStrided,
      "copy between ", source.device(), " (", source.layout(), ") and ", self.device(), " (", self.layout(),
      ") is not supported");
  if (to_neuron && from_neuron && self.device() == source.device()) {
    within_device(self, source, non_blocking);
  } else if (self.numel() == 0) {
    // nothing to copy
  } else if (to_neuron && from_neuron) {
    between_devices(self, source);
  } else if (to_neuron) {
    from_host(self, source, non_blocking);
  } else {
    to_host(self, source, non_blocking);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& self, bool non_blocking) {
  at::Tensor target = self;
  copy_(target, source, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& self) {
  self.resize_(source.sizes());
  return copy_from(source, self, /*non_blocking=*/false);
}

at::Tensor clone_now(const at::Tensor& self) {
  return at::clone(self);
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "The input to item() must not be empty");
  note_synchronizing("item");
  wait_until_unused(storage_of(*self.unsafeGetTensorImpl()));
  memory::DeviceAccess access;
  return at::_local_scalar_dense(host_view(self));
}

} // namespace neuron::eager
