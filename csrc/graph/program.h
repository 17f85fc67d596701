// A compiled graph as the device runs it: an operator of its own, whose kernel is a list of steps.
//
// As an operator it goes the way of all operators: its signature (shapes of its tensors and its symbolic sizes) decides
// the results' metadata, it runs inline or is enqueued, in order, as one Launch, and fails and is traced as one.
#pragma once

#include "eager/op_entry.h"
#include "graph/step.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace neuron::graph {

// What the host computes in place of steps, where generated code says something that steps do not cover: Python code.
// Gets CPU tensors and integers, gives the tensors it returns; integers that it returns go to `registers`.
using HostFunction = std::function<std::vector<at::Tensor>(c10::ArrayRef<at::Tensor> tensors, Registers& registers)>;

struct Program {
  // One entry of the graph's result list.
  struct Nothing {};
  struct TensorResult {
    Slot slot = 0;
    bool on_host = false;
  };
  using Result = std::variant<Nothing, TensorResult, IntegerExpression>;

  std::string name;
  uint32_t tensor_inputs = 0;  // in slots 0, 1, ...
  uint32_t integer_inputs = 0; // in registers 0, 1, ...
  uint32_t slots = 0;
  uint32_t registers = 0;
  uint32_t draws = 0;                // random operators
  std::vector<at::Tensor> constants; // in the slots after the inputs
  std::vector<std::unique_ptr<Step>> steps;
  HostFunction host_function; // in place of the steps
  std::vector<Result> results;
  std::vector<uint32_t> written; // inputs that the graph writes
  c10::DeviceIndex device = -1;  // where the graph's results lie when no input says so

  // How it is launched; see eager::OpEntry.
  bool needs_python = false;   // a step or the host function takes the GIL
  bool data_dependent = false; // the shape of a result depends on data

  // Call once, when all is filled in. The entry lives until the process ends: signatures are keyed by its address.
  void finish();
  eager::OpEntry& entry() const { return *entry_; }

 private:
  eager::OpEntry* entry_ = nullptr;
};

// Visits the entry of every program made so far, in the order in which they were made. Their names are the programs'.
void for_each_program_entry(const std::function<void(eager::OpEntry&)>& visit);

// Results in the order of Program::results; integers and nothing are left undefined here.
struct Outcome {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> integers;
};

// Launches the graph on the current stream. `tensors` and `integers` are the inputs. Call without the GIL.
Outcome launch(
    const std::shared_ptr<const Program>& program, std::vector<at::Tensor> tensors, std::vector<int64_t> integers);

} // namespace neuron::graph
