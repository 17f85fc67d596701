// c10's device guard for neuron: current device, streams and events, as PyTorch's generic code asks for them.
#include "device/config.h"
#include "device/current.h"
#include "device/gil.h"
#include "device/sync_debug.h"
#include "memory/caching_allocator.h"
#include "stream/event.h"
#include "stream/stream_pool.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace neuron {

namespace {

Event& event_of(void* event) {
  TORCH_INTERNAL_ASSERT(event != nullptr, "the event has not been recorded");
  return *static_cast<Event*>(event);
}

struct NeuronGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

  c10::DeviceType type() const override { return kType; }

  // ---- device -------------------------------------------------------------------------------------------------------
  c10::Device exchangeDevice(c10::Device device) const override {
    check_type(device);
    return c10::Device(kType, exchange_device(device.index()));
  }

  c10::Device getDevice() const override { return c10::Device(kType, current_device()); }

  void setDevice(c10::Device device) const override {
    check_type(device);
    exchange_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < config::device_count_or_zero()) {
      exchange_device(device.index());
    }
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(config::device_count_or_zero());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    // Host kernels compute every dtype except the quantized ones, whose layout we do not carry.
    c10::DeviceCapability capability;
    for (const auto quantized :
         {c10::ScalarType::QInt8, c10::ScalarType::QUInt8, c10::ScalarType::QInt32, c10::ScalarType::QUInt4x2,
          c10::ScalarType::QUInt2x4}) {
      capability.capability_data.capability_bits &= ~(1ULL << index_of(quantized));
    }
    return capability;
  }

  void synchronizeDevice(const c10::DeviceIndex index) const override {
    if (!config::is_started() && !config::in_bad_fork()) {
      return; // nothing can be pending
    }
    config::ensure_started();
    const auto device = index < 0 ? current_device() : index;
    without_gil([device] { synchronize_device(device); });
  }

  // ---- streams ------------------------------------------------------------------------------------------------------
  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()).unwrap(); }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(index_or_current(device)).unwrap();
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return pooled_stream(index_or_current(device), is_high_priority).unwrap();
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    // From the pool, since a stream owns a thread and PyTorch never gives a stream back.
    return pooled_stream(index_or_current(device), priority < 0).unwrap();
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_stream(lookup_stream(stream)).unwrap();
  }

  void* getStreamNativeHandle(const c10::Stream stream) const override { return &lookup_stream(stream); }

  bool queryStream(const c10::Stream& stream) const override { return lookup_stream(stream).idle(); }

  void synchronizeStream(const c10::Stream& stream) const override {
    Stream& target = lookup_stream(stream);
    note_synchronizing("Stream.synchronize");
    without_gil([&target] { target.synchronize(); });
  }

  void recordDataPtrOnStream(const c10::DataPtr& data_ptr, const c10::Stream& stream) const override {
    if (data_ptr.get() != nullptr) {
      memory::record_stream(data_ptr, lookup_stream(stream));
    }
  }

  // ---- events -------------------------------------------------------------------------------------------------------
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

  void record(
      void** event, const c10::Stream& stream, const c10::DeviceIndex index, const c10::EventFlag flag) const override {
    TORCH_CHECK(
        index == -1 || index == stream.device_index(), "Event device index ", static_cast<int>(index),
        " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    Stream& target = lookup_stream(stream);
    if (*event == nullptr) {
      *event = new Event(/*enable_timing=*/flag == c10::EventFlag::BACKEND_DEFAULT);
    }
    // Submitting may wait for room in the stream's ring.
    without_gil([&] { event_of(*event).record(target); });
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      Stream& target = lookup_stream(stream);
      without_gil([&] { event_of(event).block(target); });
    }
  }

  bool queryEvent(void* event) const override { return event == nullptr || event_of(event).query(); }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      without_gil([event] { event_of(event).synchronize(); });
    }
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return event_of(start).elapsed_ms(event_of(end));
  }

 private:
  static void check_type(c10::Device device) {
    TORCH_INTERNAL_ASSERT(device.type() == kType, "expected a neuron device, got ", device);
  }

  static c10::DeviceIndex index_or_current(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }

  // DeviceCapability numbers dtypes in the order of this macro, which is not ScalarType's.
  static uint64_t index_of(c10::ScalarType dtype) {
    switch (dtype) {
#define NEURON_CAPABILITY_INDEX(_, name) \
  case c10::ScalarType::name:            \
    return c10::kIndex_##name;
      AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(NEURON_CAPABILITY_INDEX)
#undef NEURON_CAPABILITY_INDEX
      default:
        TORCH_INTERNAL_ASSERT(false, "no capability bit for ", dtype);
    }
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuardImpl);

} // namespace

} // namespace neuron
