// The storage of a neuron tensor: device memory, plus a CPU storage over the same bytes that host kernels work on.
#pragma once

#include "stream/stream.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>
#include <typeinfo>

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

// Makes the storages that PyTorch's factories create for PrivateUse1 NeuronStorageImpls.
void register_storage_impl();

// PyTorch makes some storages by itself (from_blob, DLPack): plain ones, about whose uses nothing is known. These
// functions take both kinds. For a plain one, waiting means waiting for the whole device.
inline NeuronStorageImpl* tracked(c10::StorageImpl& storage) noexcept {
  return typeid(storage) == typeid(NeuronStorageImpl) ? static_cast<NeuronStorageImpl*>(&storage) : nullptr;
}
c10::intrusive_ptr<c10::StorageImpl> host_alias(c10::StorageImpl& storage);
inline void mark_use(c10::StorageImpl& storage, Stream& stream, uint64_t seq) noexcept {
  if (auto* const known = tracked(storage)) {
    known->mark_use(stream, seq);
  }
}
inline bool unused(c10::StorageImpl& storage) noexcept {
  const auto* const known = tracked(storage);
  return known != nullptr && known->unused();
}
void wait_until_unused(c10::StorageImpl& storage);

inline c10::StorageImpl& storage_of(const c10::TensorImpl& tensor) {
  return *tensor.unsafe_storage().unsafeGetStorageImpl();
}
inline c10::intrusive_ptr<c10::StorageImpl> share(c10::StorageImpl& storage) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
}

} // namespace neuron
