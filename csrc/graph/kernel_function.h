// Generated C++ kernels: functions of pointers and 64-bit integers, called by address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace neuron::graph {

constexpr size_t kMaxKernelArguments = 160;

// Calls `function` with `count` arguments, each a pointer or an int64_t. Both are passed alike by the calling
// conventions of x86-64 and AArch64 on Linux. What the kernel throws passes through.
void call_kernel_function(const void* function, const uint64_t* arguments, size_t count);

} // namespace neuron::graph
