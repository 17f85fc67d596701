// What the process can see: how many neuron devices, and how much HBM each has.
//
// Set once by Python (torch_neuronx.config) before the first use, because the numbers come from the chip data
// file and from environment variables; read by every layer of the core.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace neuron::config {

// What fits c10::DeviceIndex.
inline constexpr int kMaxDevices = 127;

struct DeviceConfig {
  int device_count = 0;
  size_t hbm_bytes = 0;         // per device
  bool launch_blocking = false; // run every launch on the caller's thread
  bool narrow_64bit = false;    // 64-bit numbers hold 32 bits, as on the chip
};

// Throws c10::Error when the device has been used already.
void configure(const DeviceConfig& config);
// Asks the provider when nothing has been configured yet; throws what the provider throws (a bad variable, say).
const DeviceConfig& get();
bool is_configured() noexcept;
// The device count, or 0 when it cannot be known; for the places where PyTorch allows no exception.
int device_count_or_zero() noexcept;

// Called when the configuration is first needed, on any thread; calls configure() or throws. Set by the bindings.
// So variables that a script sets after `import torch` still count, and a bad one does not break the import.
using Provider = void (*)();
void set_provider(Provider provider) noexcept;

// True in a child of a process that had started the device: its threads are gone, so nothing can run here.
bool in_bad_fork() noexcept;
// Raises PyTorch's usual message in a bad fork, and marks the device as started. Cheap after the first call.
void ensure_started();
// What has to be done once, before the first use: for work that would slow every import down.
void call_at_start(void (*prepare)());
bool is_started() noexcept;

void check_device_index(c10::DeviceIndex index);

} // namespace neuron::config
