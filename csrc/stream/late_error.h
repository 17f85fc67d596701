// An exception of a launch that ran after its call had returned.
#pragma once

#include "stream/launch.h"

#include <c10/core/Device.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace neuron {

struct LateError {
  LateError(std::exception_ptr what, const LaunchSource& launch, c10::Device where)
      : error(std::move(what)), source(launch), device(where) {}

  std::exception_ptr error;
  LaunchSource source;
  c10::Device device;
  std::atomic<bool> raised{false};
};

// The first late error that a stream's work depends on. Streams that waited for the failed launch share the error,
// which is raised once, by whichever is asked first.
class LateErrorSlot {
 public:
  // `seq`: the launch of this stream that failed, or that waited for one that did.
  void keep(std::shared_ptr<LateError> error, uint64_t seq) noexcept;
  // Takes over the error of a stream whose launches up to `seq` were waited for by launch `own_seq` of this one.
  void inherit(LateErrorSlot& other, uint64_t seq, uint64_t own_seq) noexcept;
  bool pending() const noexcept { return pending_.load(std::memory_order_acquire); }
  // Raises the error, unless that was done already, and forgets it.
  void raise();

 private:
  std::atomic<bool> pending_{false};
  std::mutex mutex_;
  std::shared_ptr<LateError> error_;
  uint64_t seq_ = 0;
};

} // namespace neuron
