#include "device/sync_debug.h"

#include <c10/util/Exception.h>

namespace neuron {

std::atomic<SyncDebugMode> g_sync_debug_mode{SyncDebugMode::Off};

void set_sync_debug_mode(SyncDebugMode mode) noexcept {
  g_sync_debug_mode.store(mode, std::memory_order_relaxed);
}

void report_synchronizing(const char* operation) {
  const SyncDebugMode mode = sync_debug_mode();
  TORCH_CHECK(mode != SyncDebugMode::Error, "called a synchronizing neuron operation: ", operation);
  if (mode == SyncDebugMode::Warn) {
    TORCH_WARN("called a synchronizing neuron operation: ", operation);
  }
}

} // namespace neuron
