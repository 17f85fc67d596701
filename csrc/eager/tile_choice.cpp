#include "eager/tile_choice.h"

#include "eager/tile_form.h"
#include "eager/tile_trial.h"

#include <algorithm>
#include <exception>
#include <mutex>

namespace neuron::eager {

namespace {

const char* const kMixed = "mixed list"; // for which no trial speaks

bool same_kind(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {
    const at::Tensor& left = a.toTensor();
    const at::Tensor& right = b.toTensor();
    return left.defined() && right.defined() && left.scalar_type() == right.scalar_type() &&
           (left.dim() == 0) == (right.dim() == 0);
  }
  return (a.isDouble() && b.isDouble()) || (a.isInt() && b.isInt());
}

// What decides how a kernel computes: is it a tensor, one without dimensions, a number, and of which dtype?
std::string kind_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      return "undefined";
    }
    return std::string(tensor.dim() == 0 ? "single " : "tensor ") + c10::toString(tensor.scalar_type());
  }
  if (value.isList()) {
    const auto items = value.toListRef();
    const bool alike =
        std::all_of(items.begin(), items.end(), [&](const c10::IValue& item) { return same_kind(item, items[0]); });
    return items.empty() || !alike ? kMixed : "list of " + kind_of(items[0]);
  }
  return value.tagKind();
}

std::string kinds_of(const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) {
  std::string kinds = c10::toString(op.operator_name());
  for (size_t i = 0; i < arguments.size(); ++i) {
    kinds +=
        ", " + (static_cast<int8_t>(i) == form.number && stands_for_one(arguments[i]) ? "1" : kind_of(arguments[i]));
  }
  return kinds;
}

constexpr int8_t kVariants = 8;

kernels::TileVariant variant_of(int8_t number) {
  return {.fused = (number & 1) == 0, .narrow_number = (number & 2) != 0, .host_root = (number & 4) != 0};
}

// The variant that gives the kernel's bits; kVariants: none does.
int8_t try_variants(const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) {
  try {
    int8_t variant = 0;
    while (variant < kVariants && !same_bits_by_tiles(op, form, arguments, variant_of(variant))) {
      ++variant;
    }
    return variant;
  } catch (const std::exception&) {
    return kVariants; // PyTorch's kernel refuses such arguments: the launch itself will tell
  }
}

struct Known {
  std::mutex mutex;
  std::unordered_map<std::string, int8_t> variants;
};

Known& all_known() {
  static auto* const known = new Known;
  return *known;
}

} // namespace

std::optional<kernels::TileVariant> TileChoice::variant_for(
    const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) const {
  if (forbidden_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  Known& known = all_known();
  const std::string kinds = kinds_of(op, form, arguments);
  std::lock_guard<std::mutex> lock(known.mutex);
  auto found = known.variants.find(kinds);
  if (found == known.variants.end()) {
    const bool mixed = kinds.find(kMixed) != std::string::npos;
    found = known.variants.emplace(kinds, mixed ? kVariants : try_variants(op, form, arguments)).first;
  }
  return found->second == kVariants ? std::nullopt : std::optional(variant_of(found->second));
}

std::unordered_map<std::string, bool> TileChoice::known() {
  std::unordered_map<std::string, bool> allowed;
  std::lock_guard<std::mutex> lock(all_known().mutex);
  for (const auto& [kinds, variant] : all_known().variants) {
    allowed.emplace(kinds, variant != kVariants);
  }
  return allowed;
}

} // namespace neuron::eager
