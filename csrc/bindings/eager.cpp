// Python access to the eager layer: which operators ran and where, launch counters, and the user's line for late
// errors.
#include "bindings/bindings.h"

#include "eager/boxed_kernel.h"
#include "eager/cut_log.h"
#include "eager/eager_mode.h"
#include "eager/fallback.h"
#include "eager/op_entry.h"
#include "eager/op_launch.h"
#include "eager/registration.h"
#include "eager/signature.h"
#include "eager/thread_settings.h"
#include "graph/program.h"
#include "stream/stream.h"
#include "stream/stream_pool.h"

#include <pybind11/stl.h>

#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

namespace neuron {

namespace {

std::string directory_of(const char* package) {
  const auto file = py::module::import(package).attr("__file__");
  return py::module::import("os.path").attr("dirname")(file).cast<std::string>() + "/";
}

bool is_library_file(const std::string& file) {
  static const auto* const torch = new std::string(directory_of("torch"));
  static const auto* const ours = new std::string(directory_of("torch_neuronx"));
  return file.starts_with(*torch) || file.starts_with(*ours);
}

// Whether code is PyTorch's own or this package's. Code objects seen here are kept for good: a late error must be able
// to name the line at any time, and a program has a bounded number of them. Guarded by the GIL.
bool belongs_to_library(PyCodeObject* code) {
  static auto* const seen = new std::unordered_map<PyCodeObject*, bool>;
  const auto found = seen->find(code);
  if (found != seen->end()) {
    return found->second;
  }
  Py_INCREF(code);
  const auto file = py::reinterpret_borrow<py::object>(code->co_filename).cast<std::string>();
  return seen->emplace(code, is_library_file(file)).first->second;
}

// The innermost line outside of them, which is the one that its user can do something about.
eager::PythonLine user_python_line() {
#if PY_VERSION_HEX >= 0x030d0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  if (finalizing) {
    return {};
  }
  py::gil_scoped_acquire gil;
  eager::PythonLine innermost; // stays empty in a thread without Python, such as autograd's
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    const eager::PythonLine line{code.ptr(), PyFrame_GetLasti(frame)};
    PyFrameObject* const caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
    if (!belongs_to_library(reinterpret_cast<PyCodeObject*>(code.ptr()))) {
      Py_XDECREF(frame);
      return line;
    }
    if (innermost.code == nullptr) {
      innermost = line;
    }
  }
  return innermost;
}

std::string describe_python_line(const void* code, int32_t lasti) {
  py::gil_scoped_acquire gil;
  auto* const object = static_cast<PyCodeObject*>(const_cast<void*>(code));
  const int line = PyCode_Addr2Line(object, lasti);
  const auto file = py::reinterpret_borrow<py::object>(object->co_filename).cast<std::string>();
  const auto function = py::reinterpret_borrow<py::object>(object->co_name).cast<std::string>();
  return file + ":" + std::to_string(line) + " in " + function;
}

// Operators, and compiled graphs under names that look alike: "neuron::graph.model_default_forward_0".
std::vector<std::string> names_by_count(std::atomic<uint64_t> eager::OpEntry::* count) {
  std::vector<std::string> names;
  const auto list = [&](const std::string& prefix) {
    return [&names, count, prefix](eager::OpEntry& entry) {
      names.insert(names.end(), (entry.*count).load(std::memory_order_relaxed), prefix + entry.name);
    };
  };
  eager::for_each_op_entry(list(""));
  graph::for_each_program_entry(list("neuron::graph."));
  return names;
}

std::vector<std::string> executed_ops() {
  return names_by_count(&eager::OpEntry::calls);
}

std::vector<std::string> fallback_ops() {
  return names_by_count(&eager::OpEntry::fallbacks);
}

void clear_op_tracking() {
  const auto clear = [](eager::OpEntry& entry) {
    entry.calls.store(0, std::memory_order_relaxed);
    entry.fallbacks.store(0, std::memory_order_relaxed);
  };
  eager::for_each_op_entry(clear);
  graph::for_each_program_entry(clear);
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

void set_mode(const std::string& mode) {
  TORCH_CHECK_VALUE(
      mode == "strict" || mode == "adaptive" || mode == "verify",
      "the eager mode is one of strict, adaptive and verify, not ", mode);
  eager::set_eager_mode(
      mode == "adaptive" ? eager::EagerMode::Adaptive
      : mode == "verify" ? eager::EagerMode::Verify
                         : eager::EagerMode::Strict);
}

const char* mode() {
  switch (eager::eager_mode()) {
    case eager::EagerMode::Adaptive:
      return "adaptive";
    case eager::EagerMode::Verify:
      return "verify";
    default:
      return "strict";
  }
}

py::dict adaptive_statistics() {
  const auto& counters = eager::adaptive_counters();
  py::dict result;
  result["regions"] = counters.regions.load(std::memory_order_relaxed);
  result["launches_in_regions"] = counters.launches_in_regions.load(std::memory_order_relaxed);
  result["verified"] = counters.verified.load(std::memory_order_relaxed);
  py::dict cuts;
  for (size_t i = 0; i < eager::kCuts; ++i) {
    cuts[eager::name_of(static_cast<eager::Cut>(i))] = counters.cuts[i].load(std::memory_order_relaxed);
  }
  result["cuts"] = cuts;
  py::dict kinds;
  for (const auto& [name, allowed] : eager::TileChoice::known()) {
    kinds[py::str(name)] = allowed;
  }
  result["kinds"] = kinds;
  result["mismatches"] = counters.mismatches.load(std::memory_order_relaxed);
  return result;
}

void start_cut_log() {
  TORCH_CHECK(eager::start_cut_log(), "cuts are being recorded already; one block at a time can do that");
}

// A list of (reason, launch, user's line or None, times).
py::list finish_cut_log() {
  py::list cuts;
  for (const auto& [cut, launch, times] : eager::finish_cut_log()) {
    py::object line = py::none();
    if (launch.python_code != nullptr) {
      line = py::str(describe_python_line(launch.python_code, launch.python_lasti));
    }
    cuts.append(py::make_tuple(eager::name_of(cut), launch.name, line, times));
  }
  return cuts;
}

py::dict launch_statistics() {
  const auto& counters = eager::launch_counters();
  const auto signatures = eager::signature_stats();
  py::dict result;
  result["inline"] = counters.inline_runs.load(std::memory_order_relaxed);
  result["enqueued"] = counters.enqueued.load(std::memory_order_relaxed);
  result["result_copies"] = counters.result_copies.load(std::memory_order_relaxed);
  result["one_thread"] = counters.one_thread_runs.load(std::memory_order_relaxed);
  result["own_products"] = counters.own_products.load(std::memory_order_relaxed);
  result["signatures"] = signatures.records;
  result["signature_table_evictions"] = signatures.evictions;
  return result;
}

} // namespace

void bind_eager(py::module& module) {
  eager::install();
  eager::set_capture_python_line(&user_python_line);
  set_describe_python_line(&describe_python_line);
  module.def("_get_executed_ops", &executed_ops);
  module.def("_get_fallback_ops", &fallback_ops);
  module.def("_clear_op_tracking", &clear_op_tracking);
  module.def("_set_eager_mode", &set_mode);
  module.def("_eager_mode", &mode);
  module.def("_adaptive_statistics", &adaptive_statistics);
  module.def("_start_cut_log", &start_cut_log);
  module.def("_finish_cut_log", &finish_cut_log);
  module.def("_reset_adaptive_statistics", [] { eager::adaptive_counters().reset(); });
  module.def("_launch_statistics", &launch_statistics);
  module.def("_set_hand_off", &set_hand_off);
  module.def("_set_fallbacks_forbidden", &eager::set_fallbacks_forbidden);
  module.def("_fallbacks_forbidden", &eager::fallbacks_forbidden);
  module.def("_set_num_threads", &eager::set_thread_count);
  module.def("_set_flush_denormal", &eager::set_flush_denormal);
  module.def("_shutdown", [] {
    py::gil_scoped_release no_gil;
    stop_all_streams();
  });
}

} // namespace neuron
