#include "eager/out_product.h"

#include "eager/op_launch.h"
#include "eager/product_choice.h"
#include "memory/kernel_memory.h"

#include <c10/util/hash.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace neuron::eager {

namespace {

// Graphs with dynamic shapes could fill the table without end; then it is emptied, and what recurs is tried again.
constexpr size_t kMaxChoices = 4096;

using Key = std::vector<int64_t>;

void add_layout(Key& key, const at::Tensor& tensor) {
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
}

std::shared_ptr<ProductChoice> choice_for(ProductKind kind, const ProductOperands& operands) {
  static std::mutex mutex;
  static auto& choices = *new std::unordered_map<Key, std::shared_ptr<ProductChoice>, c10::hash<Key>>;
  Key key{static_cast<int64_t>(kind), static_cast<int64_t>(operands.a.scalar_type())};
  add_layout(key, operands.a);
  add_layout(key, operands.b);
  if (operands.addend) {
    add_layout(key, *operands.addend);
  }
  std::lock_guard lock(mutex);
  if (choices.size() >= kMaxChoices) {
    choices.clear();
  }
  auto& choice = choices[std::move(key)];
  if (choice == nullptr) {
    choice = std::make_shared<ProductChoice>();
  }
  return choice;
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  const auto begin = [](const at::Tensor& tensor) { return static_cast<const char*>(tensor.storage().data()); };
  return begin(a) < begin(b) + b.storage().nbytes() && begin(b) < begin(a) + a.storage().nbytes();
}

} // namespace

bool multiply_by_own_kernel(const c10::OperatorHandle& op, ProductKind kind, const torch::jit::Stack& arguments) {
  if (!arguments.back().isTensor()) {
    return false;
  }
  const auto operands = ProductOperands::of(kind, arguments);
  const at::Tensor& result = arguments.back().toTensor();
  if (!operands || result.scalar_type() != operands->a.scalar_type() || result.sizes() != operands->result_sizes() ||
      !result.is_contiguous() || share_storage(result, operands->a) || share_storage(result, operands->b) ||
      (operands->addend && share_storage(result, *operands->addend))) {
    return false;
  }
  const auto choice = choice_for(kind, *operands);
  {
    memory::KernelMemory apart(nullptr, 0); // what a trial allocates is no allocation of the graph's
    choice->try_once(op, kind, arguments);
  }
  if (!choice->covered(kind, arguments)) {
    return false;
  }
  operands->multiply_into(result, choice->order());
  launch_counters().own_products.fetch_add(1, std::memory_order_relaxed);
  return true;
}

} // namespace neuron::eager
