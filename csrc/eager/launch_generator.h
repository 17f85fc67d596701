// The host generator that a random launch draws from, set up from the {seed, offset} reserved at the call.
#pragma once

#include "device/generator.h"

#include <ATen/core/Generator.h>

namespace neuron::eager {

// A CPU generator of the calling thread, whose whole state follows from `state`. Valid until the thread's next call.
at::Generator launch_generator(const PhiloxState& state);

// For launches that stand for several random operators: the generator of the n-th, which draws what that operator would
// draw as a launch of its own. Only while such a launch runs; n = 0 is the `state` of the newest launch_generator call.
at::Generator nth_launch_generator(uint32_t n);

// Counters a random op takes from its generator. One step is enough: the draw is seeded by it, not indexed by element.
constexpr uint64_t kOffsetPerLaunch = 4;

// What `draws` random ops draw from: reserves from `generator` (or from the device's default when undefined). Throws
// for a generator of another device.
PhiloxState reserve_for_launch(
    const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint32_t draws = 1);

// In host-RNG mode: the host generator that stands for `generator`. Throws for a generator of another device.
at::Generator host_generator(const at::Generator& generator);

} // namespace neuron::eager
