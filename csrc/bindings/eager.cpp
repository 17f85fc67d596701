// Python access to the eager layer: which operators ran and where, launch counters, and the user's line for late
// errors.
#include "bindings/bindings.h"

#include "eager/boxed_kernel.h"
#include "eager/fallback.h"
#include "eager/op_entry.h"
#include "eager/op_launch.h"
#include "eager/registration.h"
#include "eager/signature.h"
#include "eager/thread_count.h"
#include "stream/stream.h"
#include "stream/stream_pool.h"

#include <pybind11/stl.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace neuron {

namespace {

// Code objects named by launches are kept for good: a late error must be able to name the line at any time, and a
// program has a bounded number of them. Guarded by the GIL.
void keep_code_object(PyObject* code) {
  static auto* const kept = new std::unordered_set<PyObject*>;
  if (kept->insert(code).second) {
    Py_INCREF(code);
  }
}

eager::PythonLine innermost_python_line() {
#if PY_VERSION_HEX >= 0x030d0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  if (finalizing) {
    return {};
  }
  py::gil_scoped_acquire gil;
  PyFrameObject* const frame = PyThreadState_GetFrame(PyThreadState_Get());
  if (frame == nullptr) {
    return {}; // a thread without Python, such as autograd's
  }
  auto* const code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  const int lasti = PyFrame_GetLasti(frame);
  keep_code_object(code);
  Py_DECREF(code);
  Py_DECREF(frame);
  return {code, lasti};
}

std::string describe_python_line(const void* code, int32_t lasti) {
  py::gil_scoped_acquire gil;
  auto* const object = static_cast<PyCodeObject*>(const_cast<void*>(code));
  const int line = PyCode_Addr2Line(object, lasti);
  const auto file = py::reinterpret_borrow<py::object>(object->co_filename).cast<std::string>();
  const auto function = py::reinterpret_borrow<py::object>(object->co_name).cast<std::string>();
  return file + ":" + std::to_string(line) + " in " + function;
}

std::vector<std::string> executed_ops() {
  std::vector<std::string> names;
  eager::for_each_op_entry([&](eager::OpEntry& entry) {
    names.insert(names.end(), entry.calls.load(std::memory_order_relaxed), entry.name);
  });
  return names;
}

std::vector<std::string> fallback_ops() {
  std::vector<std::string> names;
  eager::for_each_op_entry([&](eager::OpEntry& entry) {
    names.insert(names.end(), entry.fallbacks.load(std::memory_order_relaxed), entry.name);
  });
  return names;
}

void clear_op_tracking() {
  eager::for_each_op_entry([](eager::OpEntry& entry) {
    entry.calls.store(0, std::memory_order_relaxed);
    entry.fallbacks.store(0, std::memory_order_relaxed);
  });
}

void set_hand_off(const std::string& when) {
  TORCH_CHECK_VALUE(
      when == "measured" || when == "always" || when == "never", "hand-off is one of measured, always and never, not ",
      when);
  eager::set_hand_off(
      when == "always"  ? eager::HandOff::Always
      : when == "never" ? eager::HandOff::Never
                        : eager::HandOff::Measured);
}

py::dict launch_statistics() {
  const auto& counters = eager::launch_counters();
  const auto signatures = eager::signature_stats();
  py::dict result;
  result["inline"] = counters.inline_runs.load(std::memory_order_relaxed);
  result["enqueued"] = counters.enqueued.load(std::memory_order_relaxed);
  result["result_copies"] = counters.result_copies.load(std::memory_order_relaxed);
  result["signatures"] = signatures.records;
  result["signature_table_evictions"] = signatures.evictions;
  return result;
}

} // namespace

void bind_eager(py::module& module) {
  eager::install();
  eager::set_capture_python_line(&innermost_python_line);
  set_describe_python_line(&describe_python_line);
  module.def("_get_executed_ops", &executed_ops);
  module.def("_get_fallback_ops", &fallback_ops);
  module.def("_clear_op_tracking", &clear_op_tracking);
  module.def("_launch_statistics", &launch_statistics);
  module.def("_set_hand_off", &set_hand_off);
  module.def("_set_fallbacks_forbidden", &eager::set_fallbacks_forbidden);
  module.def("_fallbacks_forbidden", &eager::fallbacks_forbidden);
  module.def("_set_num_threads", &eager::set_thread_count);
  module.def("_shutdown", [] {
    py::gil_scoped_release no_gil;
    stop_all_streams();
  });
}

} // namespace neuron
