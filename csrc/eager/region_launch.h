// Adaptive execution: launches that the executor finds queued behind each other, run as one region.
#pragma once

#include "eager/eager_mode.h"
#include "stream/launch.h"

#include <cstddef>

namespace neuron::eager {

class OpLaunch;

// Runs the launch, and those queued behind it that fit into a region with it; returns how many of the latter.
size_t run_region(OpLaunch& first, const QueuedLaunches& queued);

} // namespace neuron::eager
