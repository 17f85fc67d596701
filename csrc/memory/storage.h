// The storage of a neuron tensor: device memory, plus a CPU storage over the same bytes that host kernels work on.
#pragma once

#include "stream/stream.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>

namespace neuron {

class NeuronStorageImpl final : public c10::StorageImpl {
 public:
  using c10::StorageImpl::StorageImpl;

  ~NeuronStorageImpl() override;

  // A CPU storage that aliases this memory without owning it. Made once; remade when the memory was replaced or when a
  // kernel left it changed (grown by an `out=`).
  c10::intrusive_ptr<c10::StorageImpl> host_alias();
  // Takes over the CPU storage that a host kernel made over this very memory, emptied of its ownership.
  void adopt_host_alias(c10::intrusive_ptr<c10::StorageImpl> alias);

  // Notes a submitted launch that uses this memory. Launches on a second stream make it `shared`: then host access
  // waits for every stream of the device.
  void mark_use(Stream& stream, uint64_t seq) noexcept;
  // True when no submitted launch can touch this memory any more.
  bool unused() const noexcept;
  // Blocks until `unused()`. Raises a late error of the streams it waited for. The GIL should not be held.
  void wait_until_unused();

 private:
  // Owns one reference. Atomic, because two threads may use one tensor for the first time at the same moment.
  std::atomic<c10::StorageImpl*> host_alias_{nullptr};
  std::atomic<Stream*> last_stream_{nullptr};
  std::atomic<uint64_t> last_seq_{0};
  std::atomic<bool> shared_{false};
};

// Makes every PrivateUse1 storage in the process a NeuronStorageImpl.
void register_storage_impl();

inline NeuronStorageImpl& storage_of(const c10::TensorImpl& tensor) {
  return *static_cast<NeuronStorageImpl*>(tensor.unsafe_storage().unsafeGetStorageImpl());
}

} // namespace neuron
