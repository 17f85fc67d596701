#include "eager/eager_mode.h"

namespace neuron::eager {

namespace {

std::atomic<EagerMode> g_mode{EagerMode::Strict};

} // namespace

EagerMode eager_mode() noexcept {
  return g_mode.load(std::memory_order_relaxed);
}

void set_eager_mode(EagerMode mode) noexcept {
  g_mode.store(mode, std::memory_order_relaxed);
}

const char* name_of(Cut cut) noexcept {
  switch (cut) {
    case Cut::QueueEnd:
      return "end of queue";
    case Cut::NoOperator:
      return "not an operator";
    case Cut::OtherKind:
      return "not element-wise";
    case Cut::Arguments:
      return "arguments";
    case Cut::OtherSizes:
      return "other sizes";
    case Cut::SharedMemory:
      return "shared memory";
    case Cut::Length:
      return "length";
  }
  return "";
}

void AdaptiveCounters::reset() noexcept {
  for (auto* counter : {&regions, &launches_in_regions, &verified, &mismatches}) {
    counter->store(0, std::memory_order_relaxed);
  }
  for (auto& cut : cuts) {
    cut.store(0, std::memory_order_relaxed);
  }
}

AdaptiveCounters& adaptive_counters() noexcept {
  static auto* const counters = new AdaptiveCounters;
  return *counters;
}

} // namespace neuron::eager
