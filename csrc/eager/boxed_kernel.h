// The one kernel behind (almost) every operator on neuron: scan, look the signature up, run inline or enqueue.
#pragma once

#include "eager/op_entry.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace neuron::eager {

// Registered as the backend fallback of PrivateUse1 and, one by one, for operators that have a composite kernel but are
// better launched whole.
void boxed_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

struct LaunchOptions {
  c10::DeviceIndex device = -1; // where it runs when no argument says so; -1: the current device
  bool inline_only = false;     // it must be done when the call returns
};

// Launches an operator whose arguments are on the stack, and leaves its results there.
void launch_operator(OpEntry& entry, torch::jit::Stack* stack, const LaunchOptions& options);

// When a launch whose results are known is handed to the executor. Tests force either way; programs keep `Measured`.
enum class HandOff : uint8_t {
  Measured, // when the stream is busy, or when the kernel takes longer than handing it over
  Always,
  Never,
};
void set_hand_off(HandOff when) noexcept;
HandOff hand_off() noexcept;

// How the bindings find the user's line for launches that data can make fail. The GIL is not held by the caller.
struct PythonLine {
  const void* code = nullptr;
  int32_t lasti = 0;
};
using CapturePythonLine = PythonLine (*)();
void set_capture_python_line(CapturePythonLine capture) noexcept;
PythonLine capture_python_line();

} // namespace neuron::eager
