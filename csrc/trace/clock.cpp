#include "trace/clock.h"

#include <chrono>

namespace neuron::trace {

double ticks_per_ns() {
  static const double ratio = [] {
    const auto wall = std::chrono::steady_clock::now();
    const auto ticks = now_ticks();
    std::chrono::nanoseconds passed{0};
    while (passed < std::chrono::microseconds(200)) {
      passed = std::chrono::steady_clock::now() - wall;
    }
    return static_cast<double>(now_ticks() - ticks) / static_cast<double>(passed.count());
  }();
  return ratio;
}

} // namespace neuron::trace
