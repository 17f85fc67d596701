// Which CPU op, and which user annotation, the calling thread is in, as the profiler numbers them. Copied into each
// launch when it is submitted.
#pragma once

#include <cstdint>

namespace neuron::trace {

// Two of the profiler's ids in one word; 0 is none. Kineto's own activities carry 32-bit ids, too.
inline uint64_t make_correlation(uint64_t op, uint64_t annotation) noexcept {
  return annotation << 32 | (op & 0xffffffff);
}
inline int32_t op_of(uint64_t correlation) noexcept {
  return static_cast<int32_t>(correlation & 0xffffffff);
}
inline int32_t annotation_of(uint64_t correlation) noexcept {
  return static_cast<int32_t>(correlation >> 32);
}

// The innermost CPU op and the innermost record_function of this thread; 0 when no profiler session is running.
uint64_t current_correlation() noexcept;

// Called by the profiler session: ids pushed in an earlier session, and never popped, do not count in a later one.
void begin_correlation_session() noexcept;
void end_correlation_session() noexcept;
void push_op(uint64_t id) noexcept;
void pop_op() noexcept;
void push_annotation(uint64_t id) noexcept;
void pop_annotation() noexcept;

} // namespace neuron::trace
