// Where regions end, and why: by the launch that ended them, with the user's line. Kept while somebody asks for it.
#pragma once

#include "eager/eager_mode.h"
#include "stream/launch.h"

#include <atomic>
#include <cstdint>
#include <vector>

namespace neuron::eager {

struct LoggedCut {
  Cut cut;
  LaunchSource launch; // the one that did not fit, or the region's last; see is_about_next()
  uint64_t times;
};

// Whether the launch behind the region ended it; for other cuts the region's last launch is the one to name.
bool is_about_next(Cut cut) noexcept;

extern std::atomic<bool> g_logs_cuts;
// While true, launches are submitted with the user's line.
inline bool logs_cuts() noexcept {
  return g_logs_cuts.load(std::memory_order_relaxed);
}

// One log at a time: false when there is one already.
bool start_cut_log();
// Ends the log and returns what is in it, the most frequent first. Of the places of a process that keeps making new
// ones, those after the first few thousand are not told apart.
std::vector<LoggedCut> finish_cut_log();
// Called by executors.
void log_cut(Cut cut, const LaunchSource& launch);

} // namespace neuron::eager
