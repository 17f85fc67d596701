// Packages of AOTInductor for neuron: PyTorch's loader asks for a runner by the device's name. The model in the package
// is the host's code, and each call of it is one Launch, as of any compiled graph.
#include "device/current.h"
#include "device/gil.h"
#include "graph/program.h"
#include "stream/finish_launches.h"

#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace neuron::graph {

namespace {

using torch::inductor::AOTIModelContainerRunner;

// compiler/aot_inductor.py puts this into the package's metadata, a JSON file of strings next to the library.
constexpr std::string_view kFactsKey = "\"neuron_graph\": \"";

struct PackageFacts {
  std::string name;
  bool data_dependent = false;
  std::string inputs, results; // a letter for each tensor: t for neuron, h for the host
};

PackageFacts read_facts(const std::string& library) {
  auto path = std::filesystem::path(library);
  path.replace_filename(path.stem().string() + "_metadata.json");
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string metadata = text.str();
  const auto begin = metadata.find(kFactsKey);
  TORCH_CHECK(begin != std::string::npos, "the package was not compiled for neuron: ", path.string());
  const auto value = begin + kFactsKey.size();
  PackageFacts facts;
  std::istringstream fields(metadata.substr(value, metadata.find('"', value) - value));
  fields >> facts.name >> facts.data_dependent >> facts.inputs >> facts.results;
  TORCH_CHECK(!fields.fail(), "the package's entry neuron_graph is damaged: ", path.string());
  for (auto* const letters : {&facts.inputs, &facts.results}) {
    if (*letters == "-") {
      letters->clear();
    }
  }
  return facts;
}

class PackageRunner : public AOTIModelContainerRunner {
 public:
  PackageRunner(
      const std::string& library, size_t models, const std::string& device, const std::string& kernels,
      bool single_threaded)
      : AOTIModelContainerRunner(library, models, "cpu", kernels, single_threaded),
        program_(std::make_shared<Program>()) {
    const PackageFacts facts = read_facts(library);
    const c10::Device parsed(device);
    program_->name = facts.name;
    inputs_ = facts.inputs;
    program_->tensor_inputs = static_cast<uint32_t>(inputs_.size());
    program_->device = parsed.has_index() ? parsed.index() : current_device();
    program_->data_dependent = facts.data_dependent;
    for (uint32_t i = 0; i < program_->tensor_inputs; ++i) {
      program_->written.push_back(i); // which ones is not known; it matters for tensors on the host only
    }
    Slot slot = 0;
    for (const char result : facts.results) {
      program_->results.emplace_back(Program::TensorResult{slot++, result == 'h'});
    }
    program_->host_function = [this](c10::ArrayRef<at::Tensor> tensors, Registers&) {
      auto handles = torch::aot_inductor::unsafe_alloc_new_handles_from_tensors(tensors.vec());
      return AOTIModelContainerRunner::run_impl(handles, nullptr);
    };
    program_->finish();
  }

  // Launches that are pending run the model that ends here.
  ~PackageRunner() override { finish_launches(); }

 protected:
  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& handles, void* /*stream*/) override {
    auto tensors = torch::aot_inductor::alloc_tensors_by_stealing_from_handles(handles.data(), handles.size());
    const c10::Device device(c10::kPrivateUse1, program_->device);
    for (size_t i = 0; i < std::min(tensors.size(), inputs_.size()); ++i) {
      TORCH_CHECK(
          inputs_[i] != 't' || tensors[i].device() == device, program_->name, ": input ", i, " is on ",
          tensors[i].device(), ", the package was loaded for ", device);
    }
    std::vector<at::Tensor> results;
    without_gil([&] { results = launch(program_, std::move(tensors), {}).tensors; });
    return results;
  }

 private:
  std::string inputs_;
  std::shared_ptr<Program> program_;
};

std::unique_ptr<AOTIModelContainerRunner> make_runner(
    const std::string& library, size_t models, const std::string& device, const std::string& kernels,
    const bool single_threaded) {
  return std::make_unique<PackageRunner>(library, models, device, kernels, single_threaded);
}

const torch::inductor::RegisterAOTIModelRunner registration("neuron", &make_runner);

} // namespace

} // namespace neuron::graph
