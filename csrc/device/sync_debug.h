// A debugging mode of a user's, as torch.cuda.set_sync_debug_mode: operations that make their caller wait for the
// device warn or raise.
#pragma once

#include <c10/macros/Macros.h>

#include <atomic>
#include <cstdint>

namespace neuron {

enum class SyncDebugMode : uint8_t { Off, Warn, Error };

extern std::atomic<SyncDebugMode> g_sync_debug_mode;
inline SyncDebugMode sync_debug_mode() noexcept {
  return g_sync_debug_mode.load(std::memory_order_relaxed);
}
void set_sync_debug_mode(SyncDebugMode mode) noexcept;

// Warns or raises, as the mode says. `operation` has to wait in every call, whatever is pending now.
void report_synchronizing(const char* operation);

inline void note_synchronizing(const char* operation) {
  if (C10_UNLIKELY(sync_debug_mode() != SyncDebugMode::Off)) {
    report_synchronizing(operation);
  }
}

} // namespace neuron
