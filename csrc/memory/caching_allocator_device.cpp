// The allocator as PyTorch knows it: registered for the device type, asked through c10::DeviceAllocator.
#include "device/config.h"
#include "device/current.h"
#include "memory/caching_allocator.h"
#include "memory/caching_allocator_registry.h"
#include "memory/guard_pages.h"
#include "stream/stream_pool.h"

#include <cstring>

namespace neuron::memory {

namespace {

class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    c10::DeviceIndex device = current_device();
    return allocate_data_ptr(device, nbytes, current_stream(device));
  }

  // The context is the block, not the memory; lazy clones need to know that it is nothing out of the ordinary.
  bool is_simple_data_ptr(const c10::DataPtr& data_ptr) const override {
    return data_ptr.get_deleter() == block_deleter();
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    c10::DeviceIndex device = device_of(source);
    if (device >= 0) {
      wait_for_device(device);
    }
    DeviceAccess access;
    std::memcpy(destination, source, count);
  }

  bool initialized() override { return config::is_started(); }

  void emptyCache(c10::MempoolId_t) override { empty_cache(); }

  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override { record_stream(ptr, lookup_stream(stream)); }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return device_stats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated_stats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_stats(device); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
};

NeuronAllocator& instance() {
  static auto* allocator = new NeuronAllocator; // outlives static destruction
  return *allocator;
}

const c10::AllocatorRegisterer<c10::DeviceType::PrivateUse1> registration(&instance());

} // namespace

c10::DeviceAllocator& device_allocator() {
  return instance();
}

} // namespace neuron::memory
