#include "trace/profiler_stubs.h"

#include "device/config.h"
#include "device/current.h"
#include "device/gil.h"
#include "stream/event.h"
#include "stream/stream_pool.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <functional>
#include <memory>

namespace neuron::trace {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class Stubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    auto recorded = std::make_shared<Event>(/*enable_timing=*/true);
    Stream& stream = current_stream();
    recorded->record(stream);
    if (device != nullptr) {
      *device = stream.device();
    }
    if (cpu_ns != nullptr) {
      *cpu_ns = c10::getTime();
    }
    *event = std::move(recorded);
  }

  // In microseconds, as the profiler expects it. Waits for both events.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    const auto& first = *static_cast<const Event*>(start->get());
    const auto& last = *static_cast<const Event*>(end->get());
    without_gil([&] {
      first.synchronize();
      last.synchronize();
    });
    return static_cast<float>(first.elapsed_ms(last) * 1e3);
  }

  // Markers belong to a profiler of the vendor's, as NVTX is on cuda; there is none here.
  void mark(const char* /*name*/) const override { no_markers(); }
  void rangePush(const char* /*name*/) const override { no_markers(); }
  void rangePop() const override { no_markers(); }

  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> op) const override {
    const c10::DeviceIndex before = current_device();
    for (int device = 0; device < config::get().device_count; ++device) {
      exchange_device(static_cast<c10::DeviceIndex>(device));
      op(device);
    }
    exchange_device(before);
  }

  void synchronize() const override {
    without_gil([] { synchronize_device(current_device()); });
  }

 private:
  [[noreturn]] static void no_markers() {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "the neuron device has no profiler markers; use torch.profiler.record_function with torch.profiler");
  }
};

} // namespace

void register_profiler_stubs() {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
}

} // namespace neuron::trace
