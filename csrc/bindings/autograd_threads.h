// Autograd has a thread for each device. A thread that needs the GIL after Python has begun to end is killed by Python
// in a way that C++ does not survive, so the process must not go there before these threads are at rest.
#pragma once

namespace neuron {

// Waits until every autograd thread that was started waits for work. Called without the GIL.
void wait_for_autograd_threads();

} // namespace neuron
