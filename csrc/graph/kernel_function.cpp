#include "graph/kernel_function.h"

#include <c10/util/Exception.h>

#include <array>
#include <utility>

namespace neuron::graph {

namespace {

static_assert(sizeof(void*) == sizeof(uint64_t), "pointers and 64-bit integers must be passed alike");

template <size_t>
using Word = uint64_t;

template <size_t... I>
void call_with(const void* function, const uint64_t* arguments, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(Word<I>...)>(reinterpret_cast<uintptr_t>(function))(arguments[I]...);
}

template <size_t N>
void call_with_count(const void* function, const uint64_t* arguments) {
  call_with(function, arguments, std::make_index_sequence<N>());
}

using Caller = void (*)(const void*, const uint64_t*);

template <size_t... N>
constexpr std::array<Caller, sizeof...(N)> make_callers(std::index_sequence<N...>) {
  return {&call_with_count<N>...};
}

constexpr auto kCallers = make_callers(std::make_index_sequence<kMaxKernelArguments + 1>());

} // namespace

void call_kernel_function(const void* function, const uint64_t* arguments, size_t count) {
  TORCH_INTERNAL_ASSERT(count < kCallers.size(), "a kernel with ", count, " arguments");
  kCallers[count](function, arguments);
}

} // namespace neuron::graph
