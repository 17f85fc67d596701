// Records a launch that runs on the calling thread, from construction to destruction.
#pragma once

#include "trace/ring.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/macros/Macros.h>

namespace neuron::trace {

class InlineSpan {
 public:
  // `name` lives as long as the process.
  InlineSpan(const char* name, c10::DeviceIndex device, c10::StreamId stream, uint64_t signature = 0) noexcept
      : on_(enabled()) {
    if (C10_UNLIKELY(on_)) {
      record_.name = name;
      record_.signature = signature;
      record_.device = device;
      record_.stream = static_cast<int32_t>(stream);
      record_.correlation = current_correlation();
      record_.inline_run = 1;
      record_.started = record_.enqueued = now_ticks();
    }
  }
  ~InlineSpan() {
    if (C10_UNLIKELY(on_)) {
      record_.ended = now_ticks();
      append(record_);
    }
  }
  InlineSpan(const InlineSpan&) = delete;
  InlineSpan& operator=(const InlineSpan&) = delete;

 private:
  const bool on_;
  Record record_;
};

} // namespace neuron::trace
