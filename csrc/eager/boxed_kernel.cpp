#include "eager/boxed_kernel.h"

#include "device/config.h"
#include "device/current.h"
#include "device/generator.h"
#include "device/sync_debug.h"
#include "eager/adopt.h"
#include "eager/alias.h"
#include "eager/cut_log.h"
#include "eager/fallback.h"
#include "eager/launch_generator.h"
#include "eager/neuron_tensor.h"
#include "eager/op_entry.h"
#include "eager/op_launch.h"
#include "eager/signature.h"
#include "eager/zero_tensor.h"
#include "memory/guard_pages.h"
#include "stream/stream_pool.h"
#include "trace/clock.h"
#include "trace/inline_span.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ApproximateClock.h>

#include <deque>
#include <optional>
#include <utility>

namespace neuron::eager {

namespace {

// A kernel shorter than this is run inline on an idle stream: handing it over costs the two threads more than it takes.
constexpr double kHandOffNs = 4000;

std::atomic<CapturePythonLine> g_capture_python_line{nullptr};
std::atomic<HandOff> g_hand_off{HandOff::Measured};

uint64_t hand_off_ticks() {
  static const auto ticks = static_cast<uint64_t>(kHandOffNs * trace::ticks_per_ns());
  return ticks;
}

// Launch objects for inline runs, one a nesting level (a CPU kernel may, through Python, call neuron operators).
class InlineLaunch {
 public:
  InlineLaunch() : launch_(next()) {}
  ~InlineLaunch() {
    // After success every prepared block has an owner; after a failure what was prepared is given back.
    for (const auto& block : launch_.prepared()) {
      if (block.allocation.block != nullptr) {
        memory::free(block.allocation.block);
      }
    }
    launch_.release();
    --depth();
  }
  InlineLaunch(const InlineLaunch&) = delete;
  InlineLaunch& operator=(const InlineLaunch&) = delete;
  OpLaunch& get() { return launch_; }

 private:
  static size_t& depth() {
    thread_local size_t value = 0;
    return value;
  }
  static OpLaunch& next() {
    thread_local std::deque<OpLaunch> launches;
    const size_t level = depth()++;
    if (level == launches.size()) {
      launches.emplace_back();
    }
    return launches[level];
  }
  OpLaunch& launch_;
};

// The generator that a random op was given, or none.
std::optional<at::Generator> given_generator(const ScannedCall& call) {
  const auto& value = call.args[static_cast<size_t>(call.entry->generator_arg)];
  return value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator());
}

std::optional<PhiloxState> reserve_random(const ScannedCall& call) {
  if (!call.entry->random || call.entry->generator_arg < 0) {
    return std::nullopt;
  }
  return reserve_for_launch(given_generator(call), call.device, call.entry->random_draws);
}

// Decides what the kernel of a random op draws from when it runs inline.
void set_generator(const ScannedCall& call, OpLaunch& launch) {
  if (!host_rng()) {
    if (const auto state = reserve_random(call)) {
      launch.set_random(*state);
    }
  } else if (call.entry->generator_arg >= 0) {
    // Without a generator the kernel takes the default CPU generator, now and in program order.
    if (const auto generator = given_generator(call)) {
      launch.draw_from(host_generator(*generator));
    }
  }
}

void replace_arguments(torch::jit::Stack& stack, size_t num_args, torch::jit::Stack results) {
  torch::jit::drop(stack, num_args);
  for (auto& result : results) {
    stack.push_back(std::move(result));
  }
}

void bump_versions(const ScannedCall& call) {
  for (const auto& tensor : call.tensors) {
    if (call.entry->is_mutable(tensor.arg)) {
      tensor.impl->bump_version(); // raises for a tensor of inference mode outside of it
    }
  }
}

LaunchSource source_of(const OpEntry& entry, const Record* record) {
  LaunchSource source;
  source.name = entry.name.c_str();
  source.signature = record != nullptr ? record->id : 0;
  if (C10_UNLIKELY(trace::enabled())) {
    source.correlation = trace::current_correlation();
  }
  return source;
}

// Runs the kernel on the calling thread. The stream must be idle. `record` prepares memory for the results; `fresh` is
// filled from what comes out.
torch::jit::Stack run_inline(
    const ScannedCall& call, Stream& stream, const c10::intrusive_ptr<Record>& record, Record* fresh) {
  const Record* signature = record ? record.get() : fresh;
  trace::InlineSpan span(
      call.entry->name.c_str(), stream.device(), stream.id(), signature != nullptr ? signature->id : 0);
  InlineLaunch scope;
  OpLaunch& launch = scope.get();
  launch.bind(call, /*outlives_call=*/false);
  launch.set_record(record);
  if (record && !record->inline_only) {
    for (const uint32_t spec : record->own_memory) {
      launch.expect(spec, memory::allocate(call.device, record->specs[spec].nbytes, stream));
    }
  }
  if (C10_UNLIKELY(call.entry->random)) {
    set_generator(call, launch);
  }
  torch::jit::Stack results;
  {
    memory::DeviceAccess access;
    c10::impl::ExcludeDispatchKeyGuard below(keys_above_kernels());
    memory::KernelMemory kernel_memory(launch.prepared().data(), launch.prepared().size());
    launch.call_kernel();
    results = Adopter(call, launch, kernel_memory, stream, record.get(), fresh).adopt_all();
  }
  launch_counters().inline_runs.fetch_add(1, std::memory_order_relaxed);
  return results;
}

// The results of an enqueued launch, made from its record before it runs.
class PromisedResults {
 public:
  PromisedResults(const ScannedCall& call, const Record& record, Stream& stream)
      : call_(call), record_(record), stream_(stream) {
    tensors_.reserve(record.specs.size());
    for (const auto& spec : record.specs) {
      tensors_.push_back(make(spec));
    }
  }

  void bind(OpLaunch& launch, uint64_t seq) const {
    for (const uint32_t spec : record_.own_memory) {
      auto& storage = storage_of(*tensors_[spec].unsafeGetTensorImpl());
      mark_use(storage, stream_, seq);
      launch.expect(spec, {const_cast<void*>(storage.data_ptr().get()), nullptr});
    }
  }

  torch::jit::Stack take() {
    torch::jit::Stack outputs;
    outputs.reserve(record_.returns.size());
    size_t next = 0;
    for (const auto& result : record_.returns) {
      if (result.is_list) {
        c10::List<at::Tensor> list;
        for (uint32_t i = 0; i < result.count; ++i) {
          list.push_back(std::move(tensors_[next++]));
        }
        outputs.emplace_back(std::move(list));
      } else {
        outputs.emplace_back(std::move(tensors_[next++]));
      }
    }
    return outputs;
  }

 private:
  at::Tensor make(const TensorSpec& spec) {
    switch (spec.kind) {
      case TensorSpec::Kind::Undefined:
        return {};
      case TensorSpec::Kind::Arg:
        return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(source(spec).impl));
      case TensorSpec::Kind::View: {
        const auto& viewed = *source(spec).impl;
        return make_tensor(
            share(storage_of(viewed)), spec.dtype, spec.sizes, spec.strides, viewed.storage_offset() + spec.offset);
      }
      case TensorSpec::Kind::Fresh:
        break;
    }
    c10::intrusive_ptr<c10::StorageImpl> storage =
        spec.source >= 0 ? share(storage_of(*tensors_[static_cast<size_t>(spec.source)].unsafeGetTensorImpl()))
                         : c10::intrusive_ptr<c10::StorageImpl>(allocate_storage(spec.nbytes, call_.device, stream_));
    return make_tensor(std::move(storage), spec.dtype, spec.sizes, spec.strides, spec.offset);
  }

  const TensorArg& source(const TensorSpec& spec) const { return call_.tensors[static_cast<size_t>(spec.source)]; }

  const ScannedCall& call_;
  const Record& record_;
  Stream& stream_;
  c10::SmallVector<at::Tensor, 4> tensors_;
};

torch::jit::Stack enqueue(
    const ScannedCall& call, Stream& stream, Stream::Submission& submission, const c10::intrusive_ptr<Record>& record,
    const PythonLine& line) {
  auto source = source_of(*call.entry, record.get());
  source.python_code = line.code;
  source.python_lasti = line.lasti;
  PromisedResults results(call, *record, stream); // may raise OutOfMemoryError: before a slot is taken
  const auto random = call.entry->random ? reserve_random(call) : std::nullopt;

  auto& slot = stream.acquire(submission);
  if (!slot.op) {
    slot.op = std::make_unique<OpLaunch>();
  }
  auto& launch = static_cast<OpLaunch&>(*slot.op);
  launch.bind(call, /*outlives_call=*/true);
  launch.set_record(record);
  if (random) {
    launch.set_random(*random);
  }
  const uint64_t seq = stream.submitted() + 1;
  for (const auto& tensor : call.tensors) {
    if (!tensor.on_host) {
      mark_use(storage_of(*tensor.impl), stream, seq);
    }
  }
  results.bind(launch, seq);
  slot.source = source;
  slot.active = &launch;
  stream.publish(submission);
  launch_counters().enqueued.fetch_add(1, std::memory_order_relaxed);
  return results.take();
}

bool worth_enqueueing(const ScannedCall& call, const Record& record, const Stream::Submission& submission) {
  if (record.inline_only || config::get().launch_blocking || (call.entry->random && host_rng())) {
    return false;
  }
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms())) {
    return false; // a kernel without a deterministic form raises: at the call, and only while the mode is on
  }
  const HandOff when = hand_off();
  if (C10_UNLIKELY(when != HandOff::Measured)) {
    return when == HandOff::Always;
  }
  return !submission.idle() || record.run_ticks.load(std::memory_order_relaxed) > hand_off_ticks();
}

torch::jit::Stack run_unheld(const ScannedCall& call, Stream& stream) {
  // The kernel may be Python and wait for the GIL, so the stream is drained but not held.
  {
    Stream::Submission(stream).drain();
  }
  if (call.entry->foreign) {
    note_fallback(*call.entry, "the operator has no neuron kernel; its CPU kernel ran on the device's memory");
  }
  return run_inline(call, stream, {}, nullptr);
}

} // namespace

void set_hand_off(HandOff when) noexcept {
  g_hand_off.store(when, std::memory_order_relaxed);
}

HandOff hand_off() noexcept {
  return g_hand_off.load(std::memory_order_relaxed);
}

void set_capture_python_line(CapturePythonLine capture) noexcept {
  g_capture_python_line.store(capture, std::memory_order_release);
}

PythonLine capture_python_line() {
  const auto capture = g_capture_python_line.load(std::memory_order_acquire);
  return capture != nullptr ? capture() : PythonLine{};
}

void boxed_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  launch_operator(op_entry(op), stack, {});
}

void launch_operator(OpEntry& entry, torch::jit::Stack* stack, const LaunchOptions& options) {
  entry.calls.fetch_add(1, std::memory_order_relaxed);
  ScannedCall call;
  call.device = options.device;
  scan(entry, torch::jit::last(*stack, entry.num_args), call);
  if (C10_UNLIKELY(call.zero_tensors)) {
    materialize_zero_tensors(*stack, entry.num_args);
    return launch_operator(entry, stack, options);
  }
  if (call.device < 0) {
    call.device = current_device();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      entry.has_host_kernel(), "Could not run '", entry.name, "' on neuron: the host has no kernel for it.");
  Stream& stream = current_stream(call.device);

  const bool keyed = has_signature(call);
  if (C10_UNLIKELY(!keyed)) {
    note_synchronizing(entry.name.c_str());
  }
  if (C10_UNLIKELY(entry.foreign || entry.needs_gil)) {
    replace_arguments(*stack, entry.num_args, run_unheld(call, stream));
    return;
  }
  c10::intrusive_ptr<Record> record;
  c10::intrusive_ptr<Record> fresh;
  if (C10_LIKELY(keyed)) {
    const uint64_t hash = hash_key(call.key);
    record = c10::intrusive_ptr<Record>::reclaim_copy(find_record(call.key, hash));
    if (!record) {
      fresh = c10::make_intrusive<Record>();
      fresh->id = next_record_id();
      fresh->hash = hash;
      fresh->key.assign(call.key.begin(), call.key.end());
    }
  }
  // Before the submit lock is taken: this needs the GIL, and who holds the GIL may be waiting for that lock.
  const PythonLine line = record && (entry.fails_late || logs_cuts()) ? capture_python_line() : PythonLine{};
  torch::jit::Stack results;
  {
    Stream::Submission submission(stream);
    if (record && !options.inline_only && worth_enqueueing(call, *record, submission)) {
      results = enqueue(call, stream, submission, record, line);
    } else {
      submission.drain();
      results = run_inline(call, stream, record, fresh.get());
    }
  }
  if (C10_UNLIKELY(entry.bumps_versions)) {
    bump_versions(call);
  }
  if (fresh) {
    fresh->finish();
    store_record(std::move(fresh));
  }
  replace_arguments(*stack, entry.num_args, std::move(results));
}

} // namespace neuron::eager
