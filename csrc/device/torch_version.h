// The only place that knows which versions of PyTorch differ where.
#pragma once

#include <torch/headeronly/version.h>

#define NEURON_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !NEURON_TORCH_AT_LEAST(2, 13)
#error "torch_neuronx needs PyTorch 2.13 or newer"
#endif
