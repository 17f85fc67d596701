// The trace's clock. Reading the processor's counter costs a third of asking the system for the time, so launches note
// ticks; whoever reads the trace turns them into the system's time.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <cstdint>
#include <functional>

namespace neuron::trace {

inline int64_t now_ticks() noexcept {
  return static_cast<int64_t>(c10::getApproximateTime());
}

// Ticks in a nanosecond, measured once.
double ticks_per_ns();

// Compares the two clocks when it is made and again when it is asked, and takes the counter for even in between.
class TickConverter {
 public:
  TickConverter() : made_at_(now_ticks()) {}

  // From ticks to nanoseconds since the unix epoch, the time base of torch's profiler and of Kineto. Keeps the order.
  std::function<int64_t(int64_t)> to_unix_ns() {
    return [convert = clocks_.makeConverter(), made_at = made_at_](int64_t ticks) -> int64_t {
      const auto at = [&](int64_t counter) { return convert(static_cast<c10::approx_time_t>(counter)); };
      // c10's function knows no times before it was made, which a launch that waited since an earlier reader has.
      return ticks >= made_at ? at(ticks) : 2 * at(made_at) - at(2 * made_at - ticks);
    };
  }

 private:
  c10::ApproximateClockToUnixTimeConverter clocks_;
  const int64_t made_at_; // after clocks_
};

} // namespace neuron::trace
