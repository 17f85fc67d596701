#include "bindings/bindings.h"
#include "trace/correlation.h"
#include "trace/kineto_plugin.h"
#include "trace/profiler_stubs.h"
#include "trace/ring.h"

#include <ctime>
#include <memory>
#include <vector>

namespace neuron {

namespace {

// A reader that Python can close before the object goes away.
class TraceReader {
 public:
  explicit TraceReader(size_t capacity) : reader_(std::make_unique<trace::Reader>(capacity)) {}

  // A list of tuples in the order of torch_neuronx.profiler.Launch.
  py::list take() {
    py::list launches;
    if (reader_ == nullptr) {
      return launches;
    }
    std::vector<trace::Record> records;
    {
      py::gil_scoped_release no_gil;
      records = reader_->take();
    }
    dropped_ = reader_->dropped();
    for (const trace::Record& record : records) {
      launches.append(
          py::make_tuple(
              record.name, record.signature, trace::op_of(record.correlation), trace::annotation_of(record.correlation),
              record.enqueued, record.started, record.ended, record.device, record.stream, record.thread,
              record.inline_run != 0, record.region));
    }
    return launches;
  }

  uint64_t dropped() const { return dropped_; }
  void close() { reader_.reset(); }

 private:
  std::unique_ptr<trace::Reader> reader_;
  uint64_t dropped_ = 0;
};

// What other processes do on the machine does not count.
double thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// CPU nanoseconds per launch of what a layer that runs launches does for the trace.
double measure_trace_cost(int64_t launches, bool on) {
  TORCH_CHECK_VALUE(launches > 0, "launches must be positive, but it is ", launches);
  TORCH_CHECK(
      on || !trace::enabled(),
      "the trace is on (a profiler runs, or torch_neuronx.profiler.launches()): its cost when off cannot be measured");
  std::unique_ptr<trace::Reader> reader;
  if (on) {
    reader = std::make_unique<trace::Reader>(size_t{1} << 16);
  }
  const double start = thread_cpu_ns();
  for (int64_t i = 0; i < launches; ++i) {
    trace::Record record;
    record.name = "neuron::trace_cost";
    if (trace::enabled()) { // at submission
      record.correlation = trace::current_correlation();
      record.enqueued = trace::now_ticks();
    }
    if (trace::enabled()) { // on the executor
      record.started = trace::now_ticks();
      record.ended = trace::now_ticks();
      trace::append(record);
    }
  }
  return (thread_cpu_ns() - start) / static_cast<double>(launches);
}

} // namespace

void bind_trace(py::module& module) {
  trace::register_kineto_plugin();
  trace::register_profiler_stubs();
  py::class_<TraceReader>(module, "_TraceReader")
      .def(py::init<size_t>(), py::arg("capacity"))
      .def("take", &TraceReader::take)
      .def("close", &TraceReader::close)
      .def_property_readonly("dropped", &TraceReader::dropped);
  module.def("_trace_enabled", &trace::enabled);
  module.def(
      "_measure_trace_cost", &measure_trace_cost, py::arg("launches"), py::arg("on"),
      py::call_guard<py::gil_scoped_release>());
}

} // namespace neuron
