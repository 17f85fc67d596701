// The host generator that a random launch draws from, set up from the {seed, offset} reserved at the call.
#pragma once

#include "device/generator.h"

#include <ATen/core/Generator.h>

namespace neuron::eager {

// A CPU generator of the calling thread, whose whole state follows from `state`. Valid until the thread's next call.
at::Generator launch_generator(const PhiloxState& state);

// Counters a random op takes from its generator. One step is enough: the draw is seeded by it, not indexed by element.
constexpr uint64_t kOffsetPerLaunch = 4;

// What a random op draws from: reserves from `generator` (or from the device's default when undefined). Throws for a
// generator of another device.
PhiloxState reserve_for_launch(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

// In host-RNG mode: the host generator that stands for `generator`. Throws for a generator of another device.
at::Generator host_generator(const at::Generator& generator);

} // namespace neuron::eager
