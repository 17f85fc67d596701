// A debugging mode in which device memory faults unless a launch runs or a sanctioned copy is done.
//
// TORCH_NEURONX_GUARD_MEMORY=1 turns it on, best with NEURON_LAUNCH_BLOCKING=1: host code that reads or writes device
// memory behind the device's back then crashes at the faulty line, and fresh memory is filled with 0xFF bytes (NaN).
#pragma once

#include <atomic>

namespace neuron::memory {

namespace guard {
extern std::atomic<bool> enabled;
void open() noexcept;
void close() noexcept;
bool accessible() noexcept; // device memory may be accessed now
void read_environment();    // before the first use of memory
} // namespace guard

// Device memory may be accessed, by any thread, while one of these lives. Free when the mode is off.
class DeviceAccess {
 public:
  DeviceAccess() noexcept : counted_(guard::enabled.load(std::memory_order_relaxed)) {
    if (counted_) [[unlikely]] {
      guard::open();
    }
  }
  ~DeviceAccess() {
    if (counted_) [[unlikely]] {
      guard::close();
    }
  }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

 private:
  const bool counted_; // the mode may be switched while a scope is open
};

// Switches the mode while the process runs.
void set_guard_mode(bool enabled);

} // namespace neuron::memory
