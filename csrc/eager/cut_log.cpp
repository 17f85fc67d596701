#include "eager/cut_log.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace neuron::eager {

std::atomic<bool> g_logs_cuts{false};

namespace {

constexpr size_t kMaxPlaces = 4096;

// Of what is interned, pointers tell one from another.
using Place = std::tuple<Cut, const char*, const void*, int32_t>;

struct Log {
  std::mutex mutex;
  std::map<Place, uint64_t> times;
};

Log& log() {
  static auto* const instance = new Log;
  return *instance;
}

} // namespace

bool is_about_next(Cut cut) noexcept {
  return cut != Cut::QueueEnd && cut != Cut::Length;
}

bool start_cut_log() {
  return !g_logs_cuts.exchange(true, std::memory_order_relaxed);
}

std::vector<LoggedCut> finish_cut_log() {
  std::map<Place, uint64_t> places;
  {
    std::lock_guard<std::mutex> lock(log().mutex);
    g_logs_cuts.store(false, std::memory_order_relaxed);
    places = std::exchange(log().times, {});
  }
  std::vector<LoggedCut> cuts;
  for (const auto& [place, times] : places) {
    const auto& [cut, name, code, lasti] = place;
    LaunchSource launch;
    launch.name = name;
    launch.python_code = code;
    launch.python_lasti = lasti;
    cuts.push_back({cut, launch, times});
  }
  std::stable_sort(cuts.begin(), cuts.end(), [](const auto& a, const auto& b) { return a.times > b.times; });
  return cuts;
}

void log_cut(Cut cut, const LaunchSource& launch) {
  if (!logs_cuts()) {
    return;
  }
  std::lock_guard<std::mutex> lock(log().mutex);
  if (!logs_cuts()) { // finished just now
    return;
  }
  auto& times = log().times;
  const Place place{cut, launch.name, launch.python_code, launch.python_lasti};
  const bool told_apart = times.size() < kMaxPlaces || times.contains(place);
  ++times[told_apart ? place : Place{cut, "others", nullptr, 0}];
}

} // namespace neuron::eager
