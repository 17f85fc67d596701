// What the stress programs share. They use the core without Python, so that a sanitizer sees all of their code.
#pragma once

#include "device/config.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace stress {

// Ends the program; a failure in any thread is a failure of the program.
inline void check(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "stress: not true: %s\n", what);
    std::_Exit(1);
  }
}

inline void use_devices(int count, size_t hbm_bytes) {
  neuron::config::DeviceConfig config;
  config.device_count = count;
  config.hbm_bytes = hbm_bytes;
  neuron::config::configure(config);
  neuron::config::ensure_started();
}

// Runs `work(0)` to `work(count - 1)` at the same time and waits for all.
inline void in_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back(work, i);
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

} // namespace stress
