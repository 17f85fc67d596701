// The launch of one ATen operator: its arguments as CPU tensors over the same memory, and where its results go.
#pragma once

#include "device/generator.h"
#include "eager/signature.h"
#include "eager/tile_form.h"
#include "memory/kernel_memory.h"
#include "stream/launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace neuron::eager {

class OpLaunch final : public LaunchPayload {
 public:
  // Fills the boxed arguments from a scanned call. `outlives_call`: the launch is enqueued, so values that the user
  // could change after the call (CPU scalars) are copied.
  void bind(const ScannedCall& call, bool outlives_call);
  // Where the fresh result described by spec number `spec` must end up; called in the order of Record::own_memory. The
  // memory is not owned.
  void expect(size_t spec, const memory::Allocation& memory);
  void set_record(c10::intrusive_ptr<Record> record) { record_ = std::move(record); }
  void set_random(const PhiloxState& state) {
    philox_ = state;
    random_ = true;
  }
  // The kernel draws from this host generator, and advances it; for inline runs.
  void draw_from(at::Generator host) { stack_[static_cast<size_t>(entry_->generator_arg)] = std::move(host); }

  // Calls the host kernel; afterwards the stack holds its results. Used inline, where the caller adopts them.
  void call_kernel();
  // On the executor: calls the kernel and checks its results against the record, copying those that landed elsewhere.
  void run() override;
  size_t run_with(const QueuedLaunches& queued) override;
  void release() noexcept override;

  torch::jit::Stack& results() { return stack_; }
  // The alias of the i-th tensor of the scanned call; null for CPU tensors.
  const c10::TensorImpl* alias(size_t tensor) const { return tensor < bound_ ? aliases_[tensor].get() : nullptr; }
  size_t alias_count() const { return bound_; }
  // Whether its operator is known as steps over tiles.
  bool for_tiles() const;
  // Appends what the launch is as steps over tiles. False: it is none, or tiles would give other bits.
  bool append_tile_steps(std::vector<TileStep>& steps);
  Record* record() const { return record_.get(); }
  std::vector<memory::PreparedBlock>& prepared() { return prepared_; }
  const memory::PreparedBlock* prepared_for(size_t spec) const;
  // The prepared block that begins at `data`, or null.
  memory::PreparedBlock* prepared_at(const void* data);

 private:
  at::Tensor alias_of(const c10::TensorImpl& source);
  at::Tensor host_value(const at::Tensor& tensor, bool outlives_call);
  c10::IValue rebind(const c10::IValue& value, bool outlives_call);
  void check_result(size_t spec, const at::Tensor& result);
  void move_misplaced();

  OpEntry* entry_ = nullptr;
  c10::intrusive_ptr<Record> record_;
  torch::jit::Stack stack_;
  // Kept between uses: taking a TensorImpl out of here is much cheaper than making one.
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> aliases_;
  size_t bound_ = 0;
  const c10::SmallVectorImpl<TensorArg>* same_tensors_ = nullptr; // while binding, when two arguments share memory
  std::vector<memory::PreparedBlock> prepared_;
  std::vector<int32_t> prepared_of_spec_; // index into prepared_, or -1
  // Results that the kernel put elsewhere than in their prepared blocks.
  std::vector<std::pair<const memory::PreparedBlock*, at::Tensor>> misplaced_;
  std::vector<at::Tensor> written_; // the arguments that the kernel changes; filled only when they have to be narrowed
  PhiloxState philox_;
  bool random_ = false;
  int own_thread_count_ = 0;
  bool grad_mode_ = false; // kernels for training may ask (oneDNN's RNN layers do)
};

// Counters that tests and the profiler read.
struct LaunchCounters {
  std::atomic<uint64_t> inline_runs{0};
  std::atomic<uint64_t> enqueued{0};
  std::atomic<uint64_t> result_copies{0};   // results that a kernel put elsewhere and that had to be moved
  std::atomic<uint64_t> one_thread_runs{0}; // kernels that could have had more threads; see one_thread.h
  std::atomic<uint64_t> own_products{0};    // matrix products by our own kernels; see product_choice.h
};
LaunchCounters& launch_counters();

} // namespace neuron::eager
