#include "eager/tile_choice.h"

#include "eager/tile_form.h"
#include "eager/tile_trial.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

namespace neuron::eager {

namespace {

constexpr std::array<const char*, 5> kNumbers{"Double", "Int", "Bool", "Complex", "None"};

// What decides how a kernel computes, for one argument: is it a tensor, one without dimensions, a number, a list of
// these, and of which dtype?
struct Kind {
  enum Form : uint8_t {
    Absent,
    Tensor,
    Single,
    Undefined,
    Number,
    One,
    ListOfTensors,
    ListOfSingles,
    ListOfNumbers,
    Mixed
  };
  Form form = Absent;
  uint8_t type = 0; // a dtype of tensors, of numbers an index of kNumbers

  bool operator==(const Kind&) const = default;
};

// Of one call.
struct Kinds {
  static constexpr size_t kMaxArguments = 8;
  const void* op = nullptr;
  std::array<Kind, kMaxArguments> arguments;
  bool mixed = false;

  bool operator==(const Kinds&) const = default;
};

struct KindsHash {
  size_t operator()(const Kinds& kinds) const noexcept {
    static_assert(sizeof(kinds.arguments) == 2 * sizeof(uint64_t));
    const auto words = std::bit_cast<std::array<uint64_t, 2>>(kinds.arguments);
    return c10::get_hash(kinds.op, words[0], words[1]);
  }
};

Kind kind_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      return {Kind::Undefined, 0};
    }
    return {tensor.dim() == 0 ? Kind::Single : Kind::Tensor, static_cast<uint8_t>(tensor.scalar_type())};
  }
  if (value.isList()) {
    const auto items = value.toListRef();
    const Kind first = items.empty() ? Kind{} : kind_of(items[0]);
    const bool alike =
        std::all_of(items.begin(), items.end(), [&](const c10::IValue& item) { return kind_of(item) == first; });
    const bool listed = first.form == Kind::Tensor || first.form == Kind::Single || first.form == Kind::Number;
    if (!alike || !listed) {
      return {Kind::Mixed, 0};
    }
    const auto form = first.form == Kind::Tensor   ? Kind::ListOfTensors
                      : first.form == Kind::Single ? Kind::ListOfSingles
                                                   : Kind::ListOfNumbers;
    return {form, first.type};
  }
  constexpr std::array<bool (c10::IValue::*)() const, kNumbers.size()> kTests{
      &c10::IValue::isDouble, &c10::IValue::isInt, &c10::IValue::isBool, &c10::IValue::isComplexDouble,
      &c10::IValue::isNone};
  for (uint8_t tag = 0; tag < kTests.size(); ++tag) {
    if ((value.*kTests[tag])()) {
      return {Kind::Number, tag};
    }
  }
  return {Kind::Mixed, 0};
}

Kinds kinds_of(const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) {
  Kinds kinds;
  kinds.op = &op.schema();
  kinds.mixed = arguments.size() > Kinds::kMaxArguments;
  for (size_t i = 0; i < arguments.size() && !kinds.mixed; ++i) {
    const bool is_one = static_cast<int8_t>(i) == form.number && stands_for_one(arguments[i]);
    kinds.arguments[i] = is_one ? Kind{Kind::One, 0} : kind_of(arguments[i]);
    kinds.mixed = kinds.arguments[i].form == Kind::Mixed;
  }
  return kinds;
}

// "aten::mul.Tensor, tensor Float, single Float"
std::string describe(const c10::OperatorHandle& op, const Kinds& kinds) {
  std::string text = c10::toString(op.operator_name());
  for (const Kind& kind : kinds.arguments) {
    const char* const dtype = c10::toString(static_cast<c10::ScalarType>(kind.type));
    const char* const number = kNumbers[std::min<size_t>(kind.type, kNumbers.size() - 1)];
    switch (kind.form) {
      case Kind::Absent:
        break;
      case Kind::Tensor:
        text += std::string(", tensor ") + dtype;
        break;
      case Kind::Single:
        text += std::string(", single ") + dtype;
        break;
      case Kind::Undefined:
        text += ", undefined";
        break;
      case Kind::Number:
        text += std::string(", ") + number;
        break;
      case Kind::One:
        text += ", 1";
        break;
      case Kind::ListOfTensors:
        text += std::string(", list of tensor ") + dtype;
        break;
      case Kind::ListOfSingles:
        text += std::string(", list of single ") + dtype;
        break;
      case Kind::ListOfNumbers:
        text += std::string(", list of ") + number;
        break;
      case Kind::Mixed:
        text += ", mixed list";
        break;
    }
  }
  return text;
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
  std::unordered_map<Kinds, int8_t, KindsHash> variants;
  std::unordered_map<std::string, bool> allowed; // for people
};

Known& all_known() {
  static auto* const known = new Known;
  return *known;
}

int8_t find_variant(
    const Kinds& kinds, const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) {
  Known& known = all_known();
  std::lock_guard<std::mutex> lock(known.mutex);
  auto found = known.variants.find(kinds);
  if (found == known.variants.end()) {
    found = known.variants.emplace(kinds, try_variants(op, form, arguments)).first;
    known.allowed.emplace(describe(op, kinds), found->second != kVariants);
  }
  return found->second;
}

} // namespace

std::optional<kernels::TileVariant> TileChoice::variant_for(
    const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments) const {
  if (forbidden_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  const Kinds kinds = kinds_of(op, form, arguments);
  if (kinds.mixed) {
    return std::nullopt;
  }
  // What was found out never changes, so each executor keeps what it has asked for.
  thread_local std::unordered_map<Kinds, int8_t, KindsHash> asked;
  auto found = asked.find(kinds);
  if (found == asked.end()) {
    found = asked.emplace(kinds, find_variant(kinds, op, form, arguments)).first;
  }
  return found->second == kVariants ? std::nullopt : std::optional(variant_of(found->second));
}

std::unordered_map<std::string, bool> TileChoice::known() {
  std::lock_guard<std::mutex> lock(all_known().mutex);
  return all_known().allowed;
}

} // namespace neuron::eager
