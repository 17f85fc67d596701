#include "device/gil.h"

#include <atomic>

namespace neuron {

namespace {
std::atomic<ReleaseGilAndRun> g_run{nullptr};
} // namespace

void without_gil(const std::function<void()>& wait) {
  if (auto run = g_run.load(std::memory_order_acquire)) {
    run(wait);
  } else {
    wait();
  }
}

void set_release_gil_and_run(ReleaseGilAndRun run) noexcept {
  g_run.store(run, std::memory_order_release);
}

} // namespace neuron
