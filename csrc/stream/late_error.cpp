#include "stream/late_error.h"

#include "stream/stream.h"

#include <c10/util/Exception.h>

#include <utility>

namespace neuron {

void LateErrorSlot::keep(std::shared_ptr<LateError> error, uint64_t seq) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ == nullptr || error_->raised.load(std::memory_order_relaxed)) {
    error_ = std::move(error);
    seq_ = seq;
    pending_.store(true, std::memory_order_release);
  }
}

void LateErrorSlot::inherit(LateErrorSlot& other, uint64_t seq, uint64_t own_seq) noexcept {
  if (!other.pending()) {
    return;
  }
  std::shared_ptr<LateError> error;
  {
    std::lock_guard<std::mutex> lock(other.mutex_);
    if (other.seq_ <= seq) {
      error = other.error_;
    }
  }
  if (error != nullptr && !error->raised.load(std::memory_order_relaxed)) {
    keep(std::move(error), own_seq);
  }
}

void LateErrorSlot::raise() {
  if (C10_LIKELY(!pending())) {
    return;
  }
  std::shared_ptr<LateError> late;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    late = std::exchange(error_, nullptr);
    pending_.store(false, std::memory_order_release);
  }
  if (late == nullptr || late->raised.exchange(true)) {
    return; // another thread or another stream raised it
  }
  const std::string context = "\nThe error was raised by an earlier launch on " + late->device.str() + ": " +
                              describe(late->source) + ". NEURON_LAUNCH_BLOCKING=1 raises errors at the call.";
  try {
    std::rethrow_exception(late->error);
  } catch (c10::Error& e) {
    e.add_context(context);
    throw;
  } catch (const std::exception& e) {
    TORCH_CHECK(false, e.what(), context);
  }
}

} // namespace neuron
