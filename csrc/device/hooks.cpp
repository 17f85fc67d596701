// at::PrivateUse1HooksInterface for neuron: what PyTorch's CPU code asks an accelerator for.
#include "device/config.h"
#include "device/current.h"
#include "device/generator.h"
#include "memory/caching_allocator.h"
#include "memory/guard_pages.h"
#include "memory/pinned.h"
#include "memory/storage.h"
#include "stream/stream_pool.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace neuron {

namespace {

// The old bytes are copied in stream order, so that launches already submitted see the old memory and later ones the
// new.
void resize_storage(const c10::Storage& storage, size_t new_bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  auto& impl = *storage.unsafeGetStorageImpl();
  const size_t old_bytes = storage.nbytes();
  if (new_bytes == old_bytes) {
    return;
  }
  Stream& stream = current_stream(storage.device().index());
  c10::DataPtr fresh = memory::allocate_data_ptr(storage.device().index(), new_bytes, stream);
  auto old = std::make_shared<c10::DataPtr>(impl.set_data_ptr(std::move(fresh)));
  impl.set_nbytes(new_bytes);
  if (old->get() == nullptr) {
    return;
  }
  memory::record_stream(*old, stream);
  const size_t bytes = std::min(old_bytes, new_bytes);
  if (bytes == 0) {
    return;
  }
  LaunchSource source;
  source.name = "neuron::resize_storage";
  void* target = impl.mutable_data();
  const uint64_t seq = stream.submit(
      [old, target, bytes] {
        memory::DeviceAccess access;
        std::memcpy(target, old->get(), bytes);
      },
      source);
  mark_use(impl, stream, seq);
}

struct NeuronHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return config::device_count_or_zero() > 0; }

  void init() const override { config::ensure_started(); }

  // A device is in use once it has a stream.
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    if (!config::is_started()) {
      return false;
    }
    bool has_stream = false;
    for_each_stream(index, [&](Stream&) { has_stream = true; });
    return has_stream;
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(config::device_count_or_zero());
  }

  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(index); }

  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchange_device(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }

  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index); }

  at::Device getDeviceFromPtr(void* data) const override {
    const auto index = memory::device_of(data);
    TORCH_CHECK(index >= 0, "The specified pointer resides on no neuron device");
    return at::Device(c10::DeviceType::PrivateUse1, index);
  }

  bool isPinnedPtr(const void* data) const override { return memory::is_pinned(data); }

  at::Allocator* getPinnedMemoryAllocator() const override {
    config::ensure_started();
    return at::getHostAllocator(c10::DeviceType::PrivateUse1);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_bytes) const override {
    resize_storage(storage, new_bytes);
  }
};

const bool registered = [] {
  // Never destroyed: PyTorch keeps the pointer until the process ends.
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks());
  return true;
}();

} // namespace

} // namespace neuron
