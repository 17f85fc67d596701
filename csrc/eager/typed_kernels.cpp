// Shortcuts for the operators that small models call most: on an idle stream, with small tensors, the host kernel is
// called directly, without boxing the arguments and without a signature. In every other case the boxed kernel decides.
#include "eager/typed_kernels.h"

#include "device/config.h"
#include "device/current.h"
#include "eager/alias.h"
#include "eager/boxed_kernel.h"
#include "eager/narrowing.h"
#include "eager/neuron_tensor.h"
#include "eager/op_entry.h"
#include "eager/op_launch.h"
#include "eager/recent_signatures.h"
#include "eager/signature.h"
#include "eager/thread_settings.h"
#include "memory/guard_pages.h"
#include "memory/kernel_memory.h"
#include "memory/storage.h"
#include "trace/inline_span.h"

#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/zero_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

namespace neuron::eager {

namespace {

// A kernel over this many elements takes about as long as handing it to the executor.
constexpr int64_t kSmallElements = 4096;
// The same for matrix products, in multiply-adds.
constexpr int64_t kSmallProducts = 32 * 1024;

template <class T>
constexpr bool is_tensor = std::is_same_v<std::decay_t<T>, at::Tensor>;

// Whether the call can take the shortcut, and for which device.
class Eligibility {
 public:
  void look_at(const at::Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    if (!impl.is_privateuseone()) {
      // A number wrapped by the dispatcher is the only CPU tensor that needs no further thought.
      eligible_ = eligible_ && impl.is_wrapped_number();
      return;
    }
    const auto device = impl.device().index();
    eligible_ = eligible_ && (device_ < 0 || device_ == device) && impl.numel() <= kSmallElements &&
                impl.layout() == c10::kStrided && !impl.is_conj() && !impl.is_neg();
    device_ = device;
    // Of the last two tensors, so that it is right for mm(a, b), addmm(bias, a, b) and bmm(a, b).
    products_ = elements_ * (impl.dim() > 0 ? impl.size(impl.dim() - 1) : 1);
    elements_ = impl.numel();
  }
  template <class T>
  void look_at(const T&) {}

  bool ok(bool is_product) const { return eligible_ && device_ >= 0 && (!is_product || products_ <= kSmallProducts); }
  c10::DeviceIndex device() const { return device_; }

 private:
  bool eligible_ = true;
  c10::DeviceIndex device_ = -1;
  int64_t elements_ = 0;
  int64_t products_ = 0;
};

template <class T>
decltype(auto) host_argument(AliasPool& pool, T&& value) {
  if constexpr (is_tensor<T>) {
    return value.is_privateuseone() ? pool.alias(value) : at::Tensor(value);
  } else {
    return std::forward<T>(value);
  }
}

template <class T, class... Rest>
at::Tensor& first_tensor(T& first, Rest&...) {
  return const_cast<at::Tensor&>(first);
}

// The result of a kernel in a KernelMemory(device, stream) scope.
at::Tensor adopt_served(
    at::Tensor result, memory::KernelMemory& kernel_memory, c10::DeviceIndex device, Stream& stream) {
  auto host = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(result.storage().unsafeGetStorageImpl());
  auto& served = kernel_memory.served();
  const size_t nbytes = host->nbytes();
  memory::Allocation target;
  if (served.ptr != nullptr && served.ptr == host->data_ptr().get()) {
    target = std::exchange(served, memory::Allocation{});
  } else if (nbytes > 0) {
    target = memory::allocate(device, nbytes, stream);
    std::memcpy(target.ptr, host->data_ptr().get(), nbytes);
    launch_counters().result_copies.fetch_add(1, std::memory_order_relaxed);
  }
  auto storage = make_storage(target, nbytes, device, stream);
  storage->adopt_host_alias(std::move(host));
  turn_into_neuron(result, std::move(storage));
  return result;
}

template <class Op, class Schema>
struct Typed;

template <class Op, class Result, class... Args>
struct Typed<Op, Result(Args...)> {
  static constexpr bool is_product =
      std::is_same_v<Op, at::_ops::mm> || std::is_same_v<Op, at::_ops::addmm> || std::is_same_v<Op, at::_ops::bmm>;

  static constexpr bool is_in_place = std::is_same_v<Result, at::Tensor&>;

  static Result call(Args... args) {
    Eligibility eligibility;
    (eligibility.look_at(args), ...);
    if (eligibility.ok(is_product) && !config::get().launch_blocking && !narrowing() &&
        hand_off() == HandOff::Measured) {
      const auto device = eligibility.device();
      Stream& stream = current_stream(device);
      Stream::Submission submission(stream);
      if (submission.idle()) {
        if (C10_LIKELY(!trace::enabled())) {
          return run(device, stream, args...);
        }
        if (const uint64_t signature = known_signature(args...); signature != 0) {
          trace::InlineSpan span(entry().name.c_str(), device, stream.id(), signature);
          return run(device, stream, args...);
        }
      }
    }
    return boxed(args...); // also when the trace is on and wants an id: the boxed kernel makes the record
  }

 private:
  static OpEntry& entry() {
    static OpEntry& found = op_entry(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
    return found;
  }

  static uint64_t known_signature(const Args&... args) {
    thread_local RecentSignatures recent;
    ArgumentWords words;
    (words.add(args), ...);
    if (const uint64_t id = recent.find(words); C10_LIKELY(id != 0 && words.complete(is_in_place))) {
      return id;
    }
    const uint64_t id = scanned_signature(args...);
    if (id != 0 && words.complete(is_in_place)) {
      recent.keep(words, id);
    }
    return id;
  }

  static uint64_t scanned_signature(const Args&... args) {
    const std::array<c10::IValue, sizeof...(Args)> values{c10::IValue(args)...};
    ScannedCall call;
    scan(entry(), values, call);
    if (!has_signature(call)) {
      return 0;
    }
    const Record* record = find_record(call.key, hash_key(call.key));
    return record != nullptr ? record->id : 0;
  }

  static Result run(c10::DeviceIndex device, Stream& stream, Args... args) {
    entry().calls.fetch_add(1, std::memory_order_relaxed);
    launch_counters().inline_runs.fetch_add(1, std::memory_order_relaxed);
    follow_thread_settings();
    AliasPool pool;
    memory::DeviceAccess access;
    c10::impl::ExcludeDispatchKeyGuard below(keys_above_kernels());
    if constexpr (std::is_same_v<Result, at::Tensor&>) {
      call_in_place(pool, args...);
      return first_tensor(args...);
    } else {
      memory::KernelMemory kernel_memory(device, stream);
      return adopt_served(
          Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), host_argument(pool, args)...), kernel_memory,
          device, stream);
    }
  }

  template <class Self, class... Rest>
  static void call_in_place(AliasPool& pool, Self& self, Rest&... rest) {
    at::Tensor alias = pool.alias(self);
    Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), alias, host_argument(pool, rest)...);
  }

  static Result boxed(Args... args) {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(Args));
    (torch::jit::push_one(stack, args), ...);
    boxed_kernel(entry().op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
    if constexpr (std::is_same_v<Result, at::Tensor&>) {
      return first_tensor(args...);
    } else {
      return std::move(stack[0]).toTensor();
    }
  }
};

template <class Op>
void add(torch::Library& library) {
  const std::string overload = Op::overload_name;
  const std::string name = std::string(Op::name).substr(6) + (overload.empty() ? "" : "." + overload);
  library.impl(name.c_str(), &Typed<Op, typename Op::schema>::call);
}

} // namespace

void register_typed_kernels(torch::Library& library) {
  add<at::_ops::add_Tensor>(library);
  add<at::_ops::add__Tensor>(library);
  add<at::_ops::sub_Tensor>(library);
  add<at::_ops::mul_Tensor>(library);
  add<at::_ops::mul__Tensor>(library);
  add<at::_ops::div_Tensor>(library);
  add<at::_ops::neg>(library);
  add<at::_ops::exp>(library);
  add<at::_ops::sqrt>(library);
  add<at::_ops::rsqrt>(library);
  add<at::_ops::tanh>(library);
  add<at::_ops::sigmoid>(library);
  add<at::_ops::relu>(library);
  add<at::_ops::relu_>(library);
  add<at::_ops::eq_Tensor>(library);
  add<at::_ops::lt_Tensor>(library);
  add<at::_ops::gt_Tensor>(library);
  add<at::_ops::zero_>(library);
  add<at::_ops::fill__Scalar>(library);
  add<at::_ops::sum>(library);
  add<at::_ops::sum_dim_IntList>(library);
  add<at::_ops::mm>(library);
  add<at::_ops::addmm>(library);
  add<at::_ops::bmm>(library);
}

} // namespace neuron::eager
