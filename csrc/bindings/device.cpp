#include "bindings/autograd_threads.h"
#include "bindings/bindings.h"
#include "device/config.h"
#include "device/current.h"
#include "device/gil.h"
#include "device/sync_debug.h"
#include "stream/stream_pool.h"

#include <c10/util/Exception.h>

namespace neuron {

namespace {

void release_gil_and_run(const std::function<void()>& wait) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    py::gil_scoped_release no_gil;
    wait();
  } else {
    wait();
  }
}

// Reads the environment with torch_neuronx.config. Two threads may do so at once: the second finds the same values.
void configure_from_python() {
  TORCH_CHECK(Py_IsInitialized(), "the neuron device was first used after Python had ended");
  py::gil_scoped_acquire gil;
  if (config::is_configured()) {
    return;
  }
  try {
    py::module::import("torch_neuronx.config").attr("configure_core")();
  } catch (py::error_already_set& error) {
    // A c10::Error, because PyTorch's callers know no other; the message is the one Python made.
    const std::string message = py::str(error.value());
    TORCH_CHECK(false, message);
  }
}

void stop_at_exit() {
  py::gil_scoped_release no_gil;
  wait_for_autograd_threads();
  if (config::is_started()) {
    stop_all_streams();
  }
}

} // namespace

void bind_device(py::module& module) {
  set_release_gil_and_run(release_gil_and_run);
  config::set_provider(configure_from_python);
  // Before interpreter exit: executor threads must not run when libraries start to be torn down.
  py::module::import("atexit").attr("register")(py::cpp_function(stop_at_exit));

  module.def(
      "configure",
      [](int device_count, size_t hbm_bytes, bool launch_blocking, bool narrow_64bit) {
        config::configure({device_count, hbm_bytes, launch_blocking, narrow_64bit});
      },
      py::kw_only(), py::arg("device_count"), py::arg("hbm_bytes"), py::arg("launch_blocking"),
      py::arg("narrow_64bit") = false);
  module.def("is_configured", &config::is_configured);
  module.def("device_count", [] { return config::get().device_count; });
  module.def("hbm_bytes", [] { return config::get().hbm_bytes; });
  module.def("launch_blocking", [] { return config::get().launch_blocking; });
  module.def("is_started", &config::is_started);
  module.def("ensure_started", &config::ensure_started);
  module.def("in_bad_fork", &config::in_bad_fork);

  module.def("sync_debug_mode", [] { return static_cast<int>(sync_debug_mode()); });
  module.def("set_sync_debug_mode", [](int mode) { set_sync_debug_mode(static_cast<SyncDebugMode>(mode)); });

  module.def("current_device", &current_device);
  // Negative indices are ignored, as in torch.cuda.
  module.def(
      "exchange_device", [](c10::DeviceIndex index) { return index < 0 ? current_device() : exchange_device(index); });
  module.def(
      "synchronize", [](c10::DeviceIndex index) { synchronize_device(index); },
      py::call_guard<py::gil_scoped_release>());
}

} // namespace neuron
