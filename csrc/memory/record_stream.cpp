// Tensor.record_stream: the memory may be used on another stream than the one it was allocated for.
#include "memory/caching_allocator.h"
#include "stream/stream_pool.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace neuron::memory {

namespace {

void record_tensor_stream(at::Tensor& tensor, at::Stream stream) {
  TORCH_CHECK(
      stream.device_type() == c10::DeviceType::PrivateUse1,
      "record_stream of a neuron tensor needs a neuron stream, not ", stream);
  record_stream(tensor.storage().data_ptr(), lookup_stream(stream));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("record_stream", &record_tensor_stream);
}

// A conjugated or negated view shares the memory. Without these, PyTorch would resolve it first and name the copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("record_stream", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("record_stream", torch::CppFunction::makeFallthrough());
}

} // namespace neuron::memory
