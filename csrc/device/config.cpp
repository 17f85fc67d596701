#include "device/config.h"

#include "memory/guard_pages.h"
#include "stream/stream_pool.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace neuron::config {

namespace {

// A fork waits this long for the executors to become idle, so that the child does not inherit a lock that one of them
// holds inside a host library. Bounded, since pending work may itself wait for another process.
constexpr std::chrono::milliseconds kForkDrainLimit{1000};
constexpr std::chrono::microseconds kForkDrainPoll{50};

enum class Phase : int { kUnused, kStarted, kBadFork };

std::mutex g_mutex;
DeviceConfig g_config;
std::atomic<bool> g_configured{false};
std::atomic<Phase> g_phase{Phase::kUnused};
std::atomic<Provider> g_provider{nullptr};
std::atomic<void (*)()> g_prepare{nullptr};

void before_fork() {
  if (!is_started() || on_executor_thread()) {
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + kForkDrainLimit;
  for (int device = 0; device < g_config.device_count; ++device) {
    for_each_stream(static_cast<c10::DeviceIndex>(device), [&](Stream& stream) {
      while (!stream.idle() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kForkDrainPoll);
      }
    });
  }
}

void in_forked_child() {
  if (g_phase.load(std::memory_order_relaxed) == Phase::kStarted) {
    g_phase.store(Phase::kBadFork, std::memory_order_relaxed);
  }
}

void start() {
  TORCH_CHECK(
      !in_bad_fork(),
      "Cannot re-initialize NEURON in forked subprocess. To use NEURON with multiprocessing, you must use the 'spawn' "
      "start method");
  const DeviceConfig& config = get();
  TORCH_CHECK(config.device_count > 0, "No neuron devices are visible to this process");
  std::lock_guard<std::mutex> lock(g_mutex);
  if (is_started()) {
    return;
  }
  memory::guard::read_environment();
  static const int registered = pthread_atfork(before_fork, nullptr, in_forked_child);
  TORCH_CHECK(registered == 0, "pthread_atfork failed with error ", registered);
  if (auto* const prepare = g_prepare.load(std::memory_order_acquire)) {
    prepare();
  }
  g_phase.store(Phase::kStarted, std::memory_order_release);
}

} // namespace

void call_at_start(void (*prepare)()) {
  g_prepare.store(prepare, std::memory_order_release);
}

void configure(const DeviceConfig& config) {
  TORCH_CHECK_VALUE(
      config.device_count >= 0 && config.device_count <= kMaxDevices, "a process can have at most ", kMaxDevices,
      " neuron devices, ", config.device_count, " were asked for");
  std::lock_guard<std::mutex> lock(g_mutex);
  TORCH_CHECK(
      g_phase.load(std::memory_order_acquire) == Phase::kUnused,
      "the neuron devices of this process are in use already; configure them before the first tensor");
  g_config = config;
  g_configured.store(true, std::memory_order_release);
}

const DeviceConfig& get() {
  if (C10_UNLIKELY(!g_configured.load(std::memory_order_acquire))) {
    const Provider provider = g_provider.load(std::memory_order_acquire);
    TORCH_CHECK(provider != nullptr, "the neuron device is not configured: import torch_neuronx first");
    provider();
    TORCH_INTERNAL_ASSERT(is_configured());
  }
  return g_config;
}

bool is_configured() noexcept {
  return g_configured.load(std::memory_order_acquire);
}

int device_count_or_zero() noexcept {
  try {
    return get().device_count;
  } catch (...) {
    return 0; // the reason is raised by the first call that may throw
  }
}

void set_provider(Provider provider) noexcept {
  g_provider.store(provider, std::memory_order_release);
}

bool in_bad_fork() noexcept {
  return g_phase.load(std::memory_order_relaxed) == Phase::kBadFork;
}

void ensure_started() {
  if (C10_UNLIKELY(g_phase.load(std::memory_order_acquire) != Phase::kStarted)) {
    start();
  }
}

bool is_started() noexcept {
  return g_phase.load(std::memory_order_acquire) == Phase::kStarted;
}

void check_device_index(c10::DeviceIndex index) {
  const int count = get().device_count;
  TORCH_CHECK(
      index >= 0 && index < count, "invalid neuron device index ", static_cast<int>(index), ": this process sees ",
      count, " neuron device(s)");
}

} // namespace neuron::config
