// Compiled graphs: what the translator of generated code (compiler/translate.py) says, made into a program, and its
// call.
#include "bindings/bindings.h"
#include "graph/kernel_function.h"
#include "graph/program.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace neuron {

namespace {

using graph::IntegerExpression;
using graph::IntegerTuple;
using graph::OperatorStep;
using graph::Program;
using graph::Slot;

// An integer, or a list of (operator, value) in postfix order.
IntegerExpression to_expression(const py::handle& value) {
  if (py::isinstance<py::int_>(value)) {
    return IntegerExpression(value.cast<int64_t>());
  }
  std::vector<IntegerExpression::Term> terms;
  for (const auto& item : value.cast<py::list>()) {
    const auto pair = item.cast<std::pair<IntegerExpression::Op, int64_t>>();
    terms.push_back({pair.first, pair.second});
  }
  return IntegerExpression(terms);
}

IntegerTuple to_tuple(const py::handle& value) {
  std::vector<IntegerExpression> items;
  for (const auto& item : value.cast<py::sequence>()) {
    items.push_back(to_expression(item));
  }
  return IntegerTuple(std::move(items));
}

c10::ScalarType to_dtype(const py::handle& value) {
  TORCH_CHECK_TYPE(THPDtype_Check(value.ptr()), "expected a dtype");
  return reinterpret_cast<THPDtype*>(value.ptr())->scalar_type;
}

// ("tensor", slot), ("integer", expression), ("constant", value), ...; see compiler/translate.py.
OperatorStep::Argument to_argument(const py::tuple& spec, const c10::TypePtr& type) {
  using Kind = OperatorStep::Argument::Kind;
  const auto kind = spec[0].cast<std::string>();
  OperatorStep::Argument argument;
  if (kind == "tensor") {
    argument.kind = Kind::Tensor;
    argument.slot = spec[1].cast<Slot>();
  } else if (kind == "integer") {
    argument.kind = Kind::Integer;
    argument.integer = to_expression(spec[1]);
  } else if (kind == "integers") {
    argument.kind = Kind::Integers;
    argument.integers = to_tuple(spec[1]);
  } else if (kind == "tensors" || kind == "optional_tensors") {
    argument.kind = kind == "tensors" ? Kind::Tensors : Kind::OptionalTensors;
    argument.slots = spec[1].cast<std::vector<std::optional<Slot>>>();
  } else if (kind == "generator") {
    argument.kind = Kind::Generator;
  } else {
    TORCH_CHECK_VALUE(kind == "constant", "unknown kind of argument: ", kind);
    argument.constant = torch::jit::toIValue(spec[1], type);
  }
  return argument;
}

std::unique_ptr<graph::Step> to_operator(const py::tuple& spec) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      spec[1].cast<std::string>().c_str(), spec[2].cast<std::string>().c_str());
  auto step = std::make_unique<OperatorStep>(op);
  const auto arguments = spec[3].cast<py::list>();
  const auto& formal = op.schema().arguments();
  TORCH_CHECK_VALUE(arguments.size() == formal.size(), op.schema(), ": ", arguments.size(), " arguments given");
  for (size_t i = 0; i < formal.size(); ++i) {
    step->arguments.push_back(to_argument(arguments[i].cast<py::tuple>(), formal[i].type()));
  }
  step->results = spec[4].cast<std::vector<Slot>>();
  step->draw = spec[5].cast<uint32_t>();
  return step;
}

// Libraries stay loaded: other graphs may share them, and Python holds them too.
std::shared_ptr<void> open_library(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "can't load the kernel ", path, ": ", dlerror());
  return {library, [](void* handle) { dlclose(handle); }};
}

std::unique_ptr<graph::Step> to_kernel(const py::tuple& spec) {
  auto step = std::make_unique<graph::KernelStep>();
  const auto path = spec[1].cast<std::string>();
  step->library = open_library(path);
  step->function = dlsym(step->library.get(), "kernel");
  TORCH_CHECK(step->function != nullptr, path, " has no function `kernel`");
  for (const auto& item : spec[2].cast<py::list>()) {
    const auto argument = item.cast<py::tuple>();
    graph::KernelStep::Argument made;
    made.is_tensor = argument[0].cast<std::string>() == "tensor";
    if (made.is_tensor) {
      made.slot = argument[1].cast<Slot>();
    } else {
      made.value = to_expression(argument[1]);
    }
    step->arguments.push_back(std::move(made));
  }
  TORCH_CHECK_VALUE(
      step->arguments.size() <= graph::kMaxKernelArguments, "a kernel with ", step->arguments.size(), " arguments");
  return step;
}

std::unique_ptr<graph::Step> to_step(const py::tuple& spec) {
  const auto kind = spec[0].cast<std::string>();
  if (kind == "kernel") {
    return to_kernel(spec);
  }
  if (kind == "operator") {
    return to_operator(spec);
  }
  if (kind == "allocate") {
    auto step = std::make_unique<graph::AllocateStep>();
    step->result = spec[1].cast<Slot>();
    step->sizes = to_tuple(spec[2]);
    step->strides = to_tuple(spec[3]);
    step->dtype = to_dtype(spec[4]);
    return step;
  }
  if (kind == "view") {
    auto step = std::make_unique<graph::ViewStep>();
    step->result = spec[1].cast<Slot>();
    step->source = spec[2].cast<Slot>();
    step->sizes = to_tuple(spec[3]);
    step->strides = to_tuple(spec[4]);
    step->offset = to_expression(spec[5]);
    return step;
  }
  if (kind == "free") {
    auto step = std::make_unique<graph::FreeStep>();
    step->slot = spec[1].cast<Slot>();
    return step;
  }
  if (kind == "check_layout") {
    auto step = std::make_unique<graph::CheckLayoutStep>();
    step->slot = spec[1].cast<Slot>();
    step->sizes = to_tuple(spec[2]);
    step->strides = to_tuple(spec[3]);
    step->what = spec[4].cast<std::string>();
    if (!spec[5].is_none()) {
      step->dtype = to_dtype(spec[5]);
    }
    return step;
  }
  TORCH_CHECK_VALUE(kind == "item", "unknown kind of step: ", kind);
  auto step = std::make_unique<graph::ItemStep>();
  step->result = spec[1].cast<uint32_t>();
  step->source = spec[2].cast<Slot>();
  return step;
}

Program::Result to_result(const py::tuple& spec) {
  const auto kind = spec[0].cast<std::string>();
  if (kind == "tensor") {
    return Program::TensorResult{spec[1].cast<Slot>(), spec[2].cast<bool>()};
  }
  if (kind == "integer") {
    return to_expression(spec[1]);
  }
  TORCH_CHECK_VALUE(kind == "none", "unknown kind of result: ", kind);
  return Program::Nothing{};
}

// A Python function as a host function. It takes (tensors, integers) and returns them likewise.
graph::HostFunction to_host_function(const py::object& function) {
  auto* const held = new py::object(function);
  std::shared_ptr<py::object> callable(held, [](py::object* object) {
    py::gil_scoped_acquire gil;
    delete object;
  });
  return [callable](c10::ArrayRef<at::Tensor> tensors, graph::Registers& registers) {
    py::gil_scoped_acquire gil;
    const auto returned =
        (*callable)(tensors.vec(), registers).cast<std::pair<std::vector<at::Tensor>, graph::Registers>>();
    registers = returned.second;
    return returned.first;
  };
}

std::shared_ptr<Program> make_program(const py::dict& spec) {
  auto program = std::make_shared<Program>();
  program->name = spec["name"].cast<std::string>();
  program->tensor_inputs = spec["tensor_inputs"].cast<uint32_t>();
  program->integer_inputs = spec["integer_inputs"].cast<uint32_t>();
  program->slots = spec["slots"].cast<uint32_t>();
  program->registers = spec["registers"].cast<uint32_t>();
  program->draws = spec["draws"].cast<uint32_t>();
  program->constants = spec["constants"].cast<std::vector<at::Tensor>>();
  program->written = spec["written"].cast<std::vector<uint32_t>>();
  program->device = spec["device"].cast<c10::DeviceIndex>();
  program->needs_python = spec["needs_python"].cast<bool>();
  program->data_dependent = spec["data_dependent"].cast<bool>();
  for (const auto& step : spec["steps"].cast<py::list>()) {
    program->steps.push_back(to_step(step.cast<py::tuple>()));
  }
  for (const auto& result : spec["results"].cast<py::list>()) {
    program->results.push_back(to_result(result.cast<py::tuple>()));
  }
  if (const py::object function = spec["host_function"]; !function.is_none()) {
    program->host_function = to_host_function(function);
  }
  program->finish();
  return program;
}

// `arguments` holds the graph's inputs; it is emptied, as generated code does it.
py::list run_program(const std::shared_ptr<Program>& program, const py::list& arguments) {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> integers;
  tensors.reserve(program->tensor_inputs);
  integers.reserve(program->integer_inputs);
  for (const auto& argument : arguments) {
    if (THPVariable_Check(argument.ptr())) {
      tensors.push_back(THPVariable_Unpack(argument.ptr()));
    } else {
      TORCH_CHECK_TYPE(
          PyIndex_Check(argument.ptr()), program->name, ": inputs are tensors and integers, not ",
          Py_TYPE(argument.ptr())->tp_name);
      integers.push_back(py::reinterpret_steal<py::int_>(PyNumber_Index(argument.ptr())).cast<int64_t>());
    }
  }
  if (PyList_SetSlice(arguments.ptr(), 0, PyList_GET_SIZE(arguments.ptr()), nullptr) != 0) {
    throw py::error_already_set();
  }
  graph::Outcome outcome;
  {
    py::gil_scoped_release no_gil;
    outcome = graph::launch(program, std::move(tensors), std::move(integers));
  }
  py::list results(program->results.size());
  for (size_t i = 0; i < program->results.size(); ++i) {
    const auto& result = program->results[i];
    PyObject* value = nullptr;
    if (std::holds_alternative<Program::TensorResult>(result)) {
      value =
          outcome.tensors[i].defined() ? THPVariable_Wrap(std::move(outcome.tensors[i])) : py::none().release().ptr();
    } else if (std::holds_alternative<IntegerExpression>(result)) {
      value = PyLong_FromLongLong(outcome.integers[i]);
    } else {
      value = py::none().release().ptr();
    }
    if (value == nullptr) {
      throw py::error_already_set();
    }
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), value);
  }
  return results;
}

} // namespace

void bind_graph(py::module& module) {
  using Op = IntegerExpression::Op;
  py::enum_<Op>(module, "_IntegerOp")
      .value("CONSTANT", Op::Constant)
      .value("REGISTER", Op::Register)
      .value("ADD", Op::Add)
      .value("SUBTRACT", Op::Subtract)
      .value("MULTIPLY", Op::Multiply)
      .value("FLOOR_DIVIDE", Op::FloorDivide)
      .value("MODULO", Op::Modulo)
      .value("NEGATE", Op::Negate)
      .value("MINIMUM", Op::Minimum)
      .value("MAXIMUM", Op::Maximum);
  py::class_<Program, std::shared_ptr<Program>>(module, "_Program")
      .def_property_readonly("name", [](const Program& program) { return program.name; })
      .def_property_readonly("calls", [](const Program& program) { return program.entry().calls.load(); })
      .def("__call__", &run_program, py::arg("arguments"));
  module.def("_make_program", &make_program, py::arg("spec"));
  module.attr("_MAX_KERNEL_ARGUMENTS") = graph::kMaxKernelArguments;
}

} // namespace neuron
