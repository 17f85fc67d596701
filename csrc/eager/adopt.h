// From what a host kernel returned to what the caller gets: results become neuron tensors over device memory.
#pragma once

#include "eager/op_launch.h"
#include "eager/signature.h"
#include "memory/kernel_memory.h"
#include "memory/storage.h"
#include "stream/stream.h"

#include <ATen/core/stack.h>

namespace neuron::eager {

// Used after `launch.call_kernel()` on the caller's thread. `record` is the record that prepared the launch, or null;
// `fresh` is a record to be filled from what is seen, or null.
class Adopter {
 public:
  Adopter(
      const ScannedCall& call, OpLaunch& launch, const memory::KernelMemory& kernel_memory, Stream& stream,
      const Record* record, Record* fresh);

  // The call's results, in order.
  torch::jit::Stack adopt_all();

 private:
  c10::IValue adopt_return(size_t index, const c10::IValue& value);
  at::Tensor adopt_tensor(at::Tensor result);
  at::Tensor adopt_prepared(at::Tensor result, size_t index);
  at::Tensor adopt_fresh(at::Tensor result);
  at::Tensor finish_fresh(at::Tensor result, c10::intrusive_ptr<c10::StorageImpl> storage);
  bool sync_mutated();
  void sync_grown_storage(const c10::TensorImpl& alias, const c10::TensorImpl& original);
  c10::intrusive_ptr<NeuronStorageImpl> take_memory(const c10::StorageImpl& host);
  void describe(TensorSpec spec, const at::Tensor& result);

  const ScannedCall& call_;
  OpLaunch& launch_;
  const memory::KernelMemory& kernel_memory_;
  Stream& stream_;
  const Record* record_;
  Record* fresh_;
  size_t spec_ = 0; // number of the tensor result being adopted
  // Host storages that were adopted in this call, for results that share one, and the spec that brought them.
  struct Adopted {
    const c10::StorageImpl* host;
    c10::intrusive_ptr<NeuronStorageImpl> storage;
    int32_t spec;
  };
  c10::SmallVector<Adopted, 2> adopted_;
};

} // namespace neuron::eager
