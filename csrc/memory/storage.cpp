#include "memory/storage.h"

#include "device/config.h"
#include "device/current.h"
#include "memory/caching_allocator.h"
#include "stream/stream_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <utility>

namespace neuron {

namespace {

void leave_alone(void*) {}

c10::DataPtr unowned_host_pointer(void* ptr) {
  return c10::DataPtr(ptr, ptr, &leave_alone, c10::Device(c10::DeviceType::CPU));
}

c10::intrusive_ptr<c10::StorageImpl> make_neuron_storage(
    c10::StorageImpl::use_byte_size_t, c10::SymInt size_bytes, c10::DataPtr data_ptr, c10::Allocator* allocator,
    bool resizable) {
  if (data_ptr == nullptr) {
    // A storage without memory still has a device: the current one, as its allocator would choose.
    data_ptr = allocator->allocate(static_cast<size_t>(size_bytes.guard_int(__FILE__, __LINE__)));
  }
  const auto device = data_ptr.device().index();
  const auto* const block = data_ptr.get_deleter() == memory::block_deleter()
                                ? static_cast<const memory::Block*>(data_ptr.get_context())
                                : nullptr;
  auto storage = c10::make_intrusive<NeuronStorageImpl>(
      c10::StorageImpl::use_byte_size_t{}, std::move(size_bytes), std::move(data_ptr), allocator, resizable);
  if (block != nullptr) {
    // Launches of the block's former user may still be queued on the stream that it was allocated for.
    storage->mark_use(current_stream(device), memory::ready_after(block));
  }
  return storage;
}

std::mutex& alias_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

} // namespace

NeuronStorageImpl::~NeuronStorageImpl() {
  if (auto* const alias = host_alias_.load(std::memory_order_acquire)) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(alias);
  }
}

c10::intrusive_ptr<c10::StorageImpl> NeuronStorageImpl::host_alias() {
  void* const memory = const_cast<void*>(data_ptr().get());
  const auto fits = [&](const c10::StorageImpl* alias) {
    return alias != nullptr && alias->data_ptr().get() == memory && alias->nbytes() == nbytes();
  };
  auto* alias = host_alias_.load(std::memory_order_acquire);
  if (C10_LIKELY(fits(alias))) {
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(alias);
  }
  std::lock_guard<std::mutex> lock(alias_mutex());
  alias = host_alias_.load(std::memory_order_acquire);
  if (!fits(alias)) {
    adopt_host_alias(
        c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t{}, nbytes(), unowned_host_pointer(memory), c10::GetCPUAllocator(),
            resizable()));
    alias = host_alias_.load(std::memory_order_acquire);
  }
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(alias);
}

void NeuronStorageImpl::adopt_host_alias(c10::intrusive_ptr<c10::StorageImpl> alias) {
  alias->set_data_ptr_noswap(unowned_host_pointer(const_cast<void*>(data_ptr().get())));
  if (auto* const old = host_alias_.exchange(alias.release(), std::memory_order_acq_rel)) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(old);
  }
}

void NeuronStorageImpl::mark_use(Stream& stream, uint64_t seq) noexcept {
  Stream* const last = last_stream_.load(std::memory_order_relaxed);
  if (last != &stream) {
    if (last != nullptr && last->completed() < last_seq_.load(std::memory_order_relaxed)) {
      shared_.store(true, std::memory_order_release);
    }
    last_stream_.store(&stream, std::memory_order_relaxed);
  }
  last_seq_.store(seq, std::memory_order_release);
}

bool NeuronStorageImpl::unused() const noexcept {
  if (shared_.load(std::memory_order_acquire)) {
    return false;
  }
  const uint64_t seq = last_seq_.load(std::memory_order_acquire);
  Stream* const stream = last_stream_.load(std::memory_order_acquire);
  return stream == nullptr || (stream->completed() >= seq && !stream->has_pending_error());
}

void NeuronStorageImpl::wait_until_unused() {
  if (C10_LIKELY(unused())) {
    return;
  }
  if (shared_.load(std::memory_order_acquire)) {
    synchronize_device(device().index());
    shared_.store(false, std::memory_order_release);
    return;
  }
  Stream* const stream = last_stream_.load(std::memory_order_acquire);
  stream->wait(last_seq_.load(std::memory_order_acquire));
  stream->raise_pending_error();
}

c10::intrusive_ptr<c10::StorageImpl> host_alias(c10::StorageImpl& storage) {
  if (auto* const known = tracked(storage)) {
    return known->host_alias();
  }
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t{}, storage.nbytes(),
      unowned_host_pointer(const_cast<void*>(storage.data_ptr().get())), c10::GetCPUAllocator(), storage.resizable());
}

void wait_until_unused(c10::StorageImpl& storage) {
  config::ensure_started(); // in a forked child the memory is gone
  if (auto* const known = tracked(storage)) {
    known->wait_until_unused();
  } else {
    synchronize_device(storage.device().index());
  }
}

void register_storage_impl() {
  c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &make_neuron_storage);
}

} // namespace neuron
