#include "eager/trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace neuron::eager {

namespace {

constexpr uint64_t kSeed = 67280421310721;
// Zeros at the end of a dimension: without them opposites would meet first in kernels that add halves.
constexpr int64_t kZeros = 3;
constexpr int64_t kShortDimension = 8;
// The numbers' sizes range over so many powers of two. Then no sum is exact in float32, not even of bfloat16 products.
constexpr int64_t kPowersOfTwo = 8;
// Of an addend, next to a sum of products that has cancelled.
constexpr double kAddendScale = 0x1p-12;

template <class Function>
torch::jit::Stack map_tensors(const torch::jit::Stack& values, const Function& function) {
  torch::jit::Stack mapped;
  for (const auto& value : values) {
    if (value.isTensor()) {
      mapped.emplace_back(function(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& item : value.toListRef()) {
        list.push_back(function(item.toTensor()));
      }
      mapped.emplace_back(std::move(list));
    } else {
      mapped.push_back(value);
    }
  }
  return mapped;
}

// Makes the numbers of each dimension mirror images, `sign` times the first half in the second one. Exactly computed,
// each sum of products of a tensor made with 1 and one made with -1 is 0, whichever dimension is added along, as is
// each sum of numbers of the latter.
void mirror(const at::Tensor& tensor, double sign) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const int64_t size = tensor.size(dim);
    if (tensor.stride(dim) == 0 || size < 2) {
      continue;
    }
    const int64_t half = (size - (size > kShortDimension ? kZeros : 0)) / 2;
    tensor.narrow(dim, half, half).copy_(tensor.narrow(dim, 0, half).flip({dim}).mul_(sign));
    tensor.narrow(dim, 2 * half, size - 2 * half).zero_();
  }
}

bool same_tensor_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_non_overlapping_and_dense() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

} // namespace

TrialValues::TrialValues() : generator_(at::detail::createCPUGenerator(kSeed)) {}

at::Tensor TrialValues::random_like(const at::Tensor& tensor, Kind kind) {
  auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  const auto count = static_cast<int64_t>(made.storage().nbytes() / made.element_size());
  auto numbers = made.as_strided({count}, {1}, 0);
  numbers.normal_(0.0, 1.0, generator_);
  if (kind == Kind::Cancelling) {
    numbers.mul_(at::empty_like(numbers).random_(0, kPowersOfTwo + 1, generator_).exp2_());
  }
  return made;
}

torch::jit::Stack TrialValues::like(const torch::jit::Stack& arguments, Kind kind, bool first_is_addend) {
  double sign = 1;
  bool first = true;
  return map_tensors(arguments, [&](const at::Tensor& tensor) {
    const bool is_addend = std::exchange(first, false) && first_is_addend;
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.dim() == 0) {
      return tensor;
    }
    auto made = random_like(tensor, kind);
    if (kind == Kind::Cancelling && is_addend) {
      made.mul_(kAddendScale);
    } else if (kind == Kind::Cancelling) {
      sign = -sign;
      mirror(made, sign);
    }
    return made;
  });
}

int64_t count_numbers(const torch::jit::Stack& values) {
  int64_t count = 0;
  map_tensors(values, [&](const at::Tensor& tensor) {
    count += tensor.defined() ? tensor.numel() : 0;
    return tensor;
  });
  return count;
}

std::vector<at::Tensor> run_on_copies(
    const torch::jit::Stack& arguments, const std::function<void(torch::jit::Stack&)>& kernel) {
  std::vector<at::Tensor> tensors;
  auto stack = map_tensors(arguments, [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensors.emplace_back(at::clone(tensor, at::MemoryFormat::Preserve)) : tensor;
  });
  kernel(stack);
  map_tensors(stack, [&](const at::Tensor& tensor) {
    if (tensor.defined()) {
      tensors.push_back(tensor);
    }
    return tensor;
  });
  return tensors;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), &same_tensor_bits);
}

} // namespace neuron::eager
