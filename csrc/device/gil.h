// Waiting without Python's global lock, for a core that knows nothing of Python.
#pragma once

#include <functional>

namespace neuron {

// Runs `wait` with the GIL released when the calling thread holds it. A launch never needs the GIL, so holding it while
// waiting would be no deadlock, but it would stop all other Python threads.
void without_gil(const std::function<void()>& wait);

// Set by the bindings; until then there is no Python in the process and without_gil just runs its argument.
using ReleaseGilAndRun = void (*)(const std::function<void()>& wait);
void set_release_gil_and_run(ReleaseGilAndRun run) noexcept;

} // namespace neuron
