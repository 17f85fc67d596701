#include "graph/program.h"

#include "eager/boxed_kernel.h"
#include "eager/launch_generator.h"

#include <ATen/core/List.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <deque>
#include <mutex>

namespace neuron::graph {

namespace {

// Carries a program through the boxed arguments of its launch, and keeps it alive until the launch has run.
struct ProgramBox : torch::CustomClassHolder {
  explicit ProgramBox(std::shared_ptr<const Program> program) : program(std::move(program)) {}
  std::shared_ptr<const Program> program;
};

// What the last run on this thread left in its registers: results that are integers read from data.
thread_local Registers t_last_registers;

void run_steps(const Program& program, Frame& frame) {
  for (size_t i = 0; i < program.constants.size(); ++i) {
    frame.slots[program.tensor_inputs + i] = program.constants[i];
  }
  for (const auto& step : program.steps) {
    step->run(frame);
  }
}

void run_program(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto generator = torch::jit::pop(*stack);
  const auto integers = torch::jit::pop(*stack);
  const auto tensors = torch::jit::pop(*stack);
  const auto box = torch::jit::pop(*stack).toCapsule();
  const Program& program = *static_cast<const ProgramBox&>(*box).program;

  Frame frame;
  frame.registers = integers.toIntVector();
  frame.registers.resize(program.registers);
  frame.generator = [&](uint32_t draw) {
    return generator.isNone() ? std::nullopt : std::optional<at::Generator>(eager::nth_launch_generator(draw));
  };
  c10::List<at::Tensor> on_device;
  c10::List<at::Tensor> on_host;
  std::vector<at::Tensor> results;
  if (program.host_function) {
    results = program.host_function(tensors.toTensorVector(), frame.registers);
  } else {
    frame.slots = tensors.toTensorVector();
    frame.slots.resize(program.slots);
    run_steps(program, frame);
  }
  size_t next = 0;
  for (const auto& result : program.results) {
    if (const auto* tensor = std::get_if<Program::TensorResult>(&result)) {
      auto value = program.host_function ? std::move(results.at(next++)) : frame.slots[tensor->slot];
      (tensor->on_host ? on_host : on_device).push_back(std::move(value));
    }
  }
  if (program.data_dependent) {
    t_last_registers = std::move(frame.registers);
  }
  stack->emplace_back(std::move(on_device));
  stack->emplace_back(std::move(on_host));
}

const c10::OperatorHandle& graph_operator() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("neuron::graph", "");
  return handle;
}

struct Entries {
  std::mutex mutex;
  std::deque<eager::OpEntry> all;
};

Entries& entries() {
  static auto* const instance = new Entries;
  return *instance;
}

constexpr uint32_t kTensorsArgument = 1;

} // namespace

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.def("graph(Any program, Tensor[] inputs, int[] sizes, *, Generator? generator=None) -> (Tensor[], Tensor[])");
}

TORCH_LIBRARY_IMPL(neuron, CPU, m) {
  m.impl("graph", torch::CppFunction::makeFromBoxedFunction<&run_program>());
}

void Program::finish() {
  std::lock_guard<std::mutex> lock(entries().mutex);
  auto& entry = entries().all.emplace_back(graph_operator());
  entry.name = name;
  entry.foreign = false;
  entry.foreign_schema.reset();
  entry.needs_gil = needs_python;
  entry.fails_late = true;
  entry.host_args = uint64_t{1} << kTensorsArgument;
  entry.random = draws > 0;
  entry.random_draws = draws;
  bool host_results = false;
  for (const auto& result : results) {
    const auto* tensor = std::get_if<TensorResult>(&result);
    host_results |= tensor != nullptr && tensor->on_host;
  }
  entry.host_result = host_results ? 1 : -1;
  entry.always_inline = data_dependent || host_results || needs_python;
  entry_ = &entry;
}

void for_each_program_entry(const std::function<void(eager::OpEntry&)>& visit) {
  std::lock_guard<std::mutex> lock(entries().mutex);
  for (auto& entry : entries().all) {
    visit(entry);
  }
}

Outcome launch(
    const std::shared_ptr<const Program>& program, std::vector<at::Tensor> tensors, std::vector<int64_t> integers) {
  TORCH_CHECK(
      tensors.size() == program->tensor_inputs && integers.size() == program->integer_inputs, program->name, " takes ",
      program->tensor_inputs, " tensors and ", program->integer_inputs, " integers, but it was given ", tensors.size(),
      " and ", integers.size());
  bool writes_host = false; // what is written to host memory must be there when the call returns
  for (const uint32_t input : program->written) {
    writes_host |= tensors[input].is_cpu();
  }
  Registers registers(integers.begin(), integers.end());
  torch::jit::Stack stack;
  stack.reserve(4);
  stack.emplace_back(c10::IValue::make_capsule(c10::make_intrusive<ProgramBox>(program)));
  stack.emplace_back(std::move(tensors));
  stack.emplace_back(std::move(integers));
  stack.emplace_back();
  eager::launch_operator(program->entry(), &stack, {program->device, writes_host});

  Outcome outcome;
  const auto on_device = stack[0].toTensorVector();
  const auto on_host = stack[1].toTensorVector();
  if (program->data_dependent) {
    registers = std::move(t_last_registers);
  } else {
    registers.resize(program->registers);
  }
  size_t next_device = 0;
  size_t next_host = 0;
  for (const auto& result : program->results) {
    auto& tensor = outcome.tensors.emplace_back();
    int64_t& integer = outcome.integers.emplace_back(0);
    if (const auto* spec = std::get_if<Program::TensorResult>(&result)) {
      tensor = spec->on_host ? on_host[next_host++] : on_device[next_device++];
    } else if (const auto* expression = std::get_if<IntegerExpression>(&result)) {
      integer = expression->evaluate(registers);
    }
  }
  return outcome;
}

} // namespace neuron::graph
