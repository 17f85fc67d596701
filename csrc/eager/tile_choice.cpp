#include "eager/tile_choice.h"

#include "eager/tile_form.h"
#include "eager/tile_trial.h"

#include <exception>
#include <mutex>

namespace neuron::eager {

namespace {

// What decides how a kernel computes: is it a tensor, one without dimensions, a number, and of which dtype? Of a list,
// the first one counts; append_steps looks at the others.
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
    return items.empty() ? "empty" : "list of " + kind_of(items[0]);
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

void TileChoice::find_out(const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) {
  if (verdict_.load(std::memory_order_relaxed) != kUnknown) {
    return;
  }
  Known& known = all_known();
  const std::string kinds = kinds_of(op, form, arguments);
  std::lock_guard<std::mutex> lock(known.mutex);
  auto found = known.variants.find(kinds);
  if (found == known.variants.end()) {
    found = known.variants.emplace(kinds, try_variants(op, form, arguments)).first;
  }
  verdict_.store(found->second == kVariants ? kDiffers : found->second, std::memory_order_relaxed);
}

kernels::TileVariant TileChoice::variant() const noexcept {
  return variant_of(verdict_.load(std::memory_order_relaxed));
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
