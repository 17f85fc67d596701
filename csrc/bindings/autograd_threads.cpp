#include "bindings/autograd_threads.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <pthread.h>

#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <utility>

namespace neuron {

namespace {

using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Longer than starting a few threads takes; a thread inside a kernel that never ends must not keep the process alive.
constexpr std::chrono::seconds kLimit{2};

bool g_threads_lost = false; // in a forked child

// The engine's queues, which its subclasses may see: none until the first backward pass starts the threads.
struct QueuesOfEngine : Engine {
  static size_t count() { return (Engine::get_default_engine().*(&QueuesOfEngine::device_ready_queues_)).size(); }
};

void in_forked_child() {
  g_threads_lost = QueuesOfEngine::count() > 0;
}

[[maybe_unused]] const int g_registered = pthread_atfork(nullptr, nullptr, in_forked_child);

struct DoesNothing final : Node {
  variable_list apply(variable_list&& /*inputs*/) override { return {}; }
};

// A tensor without elements, which can be made before the device is started.
at::Tensor nothing_on(c10::Device device) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(
          c10::Storage::use_byte_size_t{}, 0, c10::DataPtr(nullptr, device), /*allocator=*/nullptr,
          /*resizable=*/false),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::Make<float>());
  return tensor;
}

// A backward pass of one node: it comes back when the device's thread has been started and is done with what it had.
void visit_thread_of(c10::Device device) {
  const auto node = c10::make_intrusive<DoesNothing>();
  const auto gradient = nothing_on(device);
  node->add_input_metadata(gradient);
  Engine::get_default_engine().execute(
      {torch::autograd::Edge(node, 0)}, {gradient}, /*keep_graph=*/false, /*create_graph=*/false,
      /*accumulate_grad=*/true);
}

} // namespace

void wait_for_autograd_threads() {
  const size_t count = g_threads_lost ? 0 : QueuesOfEngine::count();
  if (count == 0) {
    return;
  }
  std::promise<void> done;
  auto is_done = done.get_future();
  std::thread([count, done = std::move(done)]() mutable {
    try {
      for (size_t index = 0; index < count; ++index) {
        visit_thread_of(c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)));
      }
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  }).detach();
  // Whether it worked or not, the process ends now; what could be done for a clean end has been done.
  is_done.wait_for(kLimit);
}

} // namespace neuron
