// CPU tensors over the memory of neuron tensors, for host kernels to work on; reused, because making a TensorImpl costs
// as much as a small kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <deque>

namespace neuron::eager {

// Makes `slot` an alias of `source`, in a new TensorImpl only when the slot is empty or a kernel kept the old one.
void point_alias(c10::intrusive_ptr<c10::TensorImpl>& slot, const c10::TensorImpl& source);

// Aliases of the calling thread for one kernel call. Nested calls take slots further up.
class AliasPool {
 public:
  AliasPool() noexcept : first_(next()) {}
  ~AliasPool() { next() = first_; }
  AliasPool(const AliasPool&) = delete;
  AliasPool& operator=(const AliasPool&) = delete;

  at::Tensor alias(const at::Tensor& tensor);

 private:
  static size_t& next() noexcept;
  size_t first_;
};

// What a kernel on aliases must not see: autograd, autocast, and modes that already saw the neuron operator.
const c10::DispatchKeySet& keys_above_kernels();

} // namespace neuron::eager
