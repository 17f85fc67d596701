#include "eager/tile_form.h"

#include <c10/core/Scalar.h>
#include <c10/util/BFloat16.h>

#include <cmath>
#include <optional>
#include <string>
#include <unordered_map>

namespace neuron::eager {

namespace {

using kernels::TileArguments;
using kernels::TileDtype;
using kernels::TileFunction;
using kernels::TileOp;

using Forms = std::unordered_map<std::string, TileForm>;

// An operator, its in-place form, and the same over lists. `number` is where its number argument is.
void add_forms(
    Forms& forms, const std::string& base, const std::string& overload, const std::string& list_overload,
    TileForm form) {
  for (const bool in_place : {false, true}) {
    form.in_place = in_place;
    const std::string mark = in_place ? "_" : "";
    const auto full = [&](const std::string& name, const std::string& which) {
      return "aten::" + name + mark + (which.empty() ? "" : "." + which);
    };
    form.list = false;
    forms[full(base, overload)] = form;
    form.list = true;
    forms[full("_foreach_" + base, list_overload)] = form;
  }
}

Forms make_forms() {
  Forms forms;
  for (const bool minus : {false, true}) {
    const std::string base = minus ? "sub" : "add";
    const TileForm form{.op = TileOp::Add, .number_op = TileOp::AddNumber, .y = 1, .number = 2, .minus = minus};
    add_forms(forms, base, "Tensor", "List", form);
    TileForm number = form;
    number.number = -1;
    add_forms(forms, base, "Scalar", "Scalar", number);
    add_forms(forms, base, "Scalar", "ScalarList", number);
  }
  for (const auto& [base, op, number_op] :
       {std::tuple("mul", TileOp::Mul, TileOp::MulNumber), std::tuple("div", TileOp::Div, TileOp::DivNumber)}) {
    const TileForm form{.op = op, .number_op = number_op, .y = 1};
    add_forms(forms, base, "Tensor", "List", form);
    add_forms(forms, base, "Scalar", "Scalar", form);
    add_forms(forms, base, "Tensor", "Tensor", form); // a list, and one tensor without dimensions
    add_forms(forms, base, "Scalar", "ScalarList", form);
  }
  for (const auto& [base, op] :
       {std::pair("sqrt", TileOp::Sqrt), std::pair("rsqrt", TileOp::Rsqrt), std::pair("reciprocal", TileOp::Reciprocal),
        std::pair("neg", TileOp::Neg), std::pair("relu", TileOp::Relu)}) {
    add_forms(forms, base, "", "", {.op = op, .number_op = op});
  }
  for (const auto& [base, op] : {std::pair("addcmul", TileOp::AddCmul), std::pair("addcdiv", TileOp::AddCdiv)}) {
    const TileForm form{.op = op, .number_op = op, .y = 1, .z = 2, .number = 3};
    add_forms(forms, base, "", "Scalar", form);
    add_forms(forms, base, "", "ScalarList", form);
  }
  add_forms(forms, "lerp", "Scalar", "Scalar", {.op = TileOp::Lerp, .number_op = TileOp::Lerp, .y = 1, .number = 2});
  return forms;
}

std::optional<TileDtype> tile_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return TileDtype::Float32;
    case c10::kBFloat16:
      return TileDtype::BFloat16;
    default:
      return std::nullopt;
  }
}

// The tensors or numbers of one argument: a list, or one value for all.
class Operand {
 public:
  Operand(const torch::jit::Stack& arguments, int8_t index) {
    if (index < 0) {
      return;
    }
    value_ = &arguments[static_cast<size_t>(index)];
    if (value_->isTensorList() || value_->isList()) {
      items_ = value_->toListRef();
      is_list_ = true;
    }
  }

  bool exists() const { return value_ != nullptr; }
  bool fits(size_t count) const { return !is_list_ || items_.size() == count; }
  const c10::IValue& at(size_t index) const { return is_list_ ? items_[index] : *value_; }

 private:
  const c10::IValue* value_ = nullptr;
  c10::ArrayRef<c10::IValue> items_;
  bool is_list_ = false;
};

bool lie_alike(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.scalar_type() == like.scalar_type() &&
         tensor.sizes() == like.sizes() && tensor.strides() == like.strides() && !tensor.is_neg();
}

// A number too large for the dtype is an error in some kernels and infinite in others: these are for PyTorch.
std::optional<float> fitting(double number, TileDtype dtype) {
  const auto narrow = static_cast<float>(number);
  const float stored = dtype == TileDtype::BFloat16 ? static_cast<float>(c10::BFloat16(narrow)) : narrow;
  return std::isinf(stored) && !std::isinf(number) ? std::nullopt : std::optional(narrow);
}

// The number that a scalar or a tensor without dimensions stands for in a kernel for `like`.
std::optional<float> number_of(const c10::IValue& value, const at::Tensor& like, TileDtype dtype) {
  if (value.isDouble()) {
    return fitting(value.toDouble(), dtype);
  }
  if (value.isInt()) {
    return static_cast<float>(value.toInt());
  }
  if (value.isScalar() || !value.isTensor()) {
    return std::nullopt;
  }
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || tensor.dim() != 0 || like.dim() == 0 || !tensor.device().is_cpu() || tensor.is_neg()) {
    return std::nullopt;
  }
  switch (tensor.scalar_type()) {
    case c10::kFloat:
      return fitting(*static_cast<const float*>(tensor.const_data_ptr()), dtype);
    case c10::kDouble:
      return fitting(*static_cast<const double*>(tensor.const_data_ptr()), dtype);
    case c10::kLong:
      return static_cast<float>(*static_cast<const int64_t*>(tensor.const_data_ptr()));
    default:
      return std::nullopt;
  }
}

} // namespace

bool stands_for_one(const c10::IValue& value) {
  return (value.isDouble() && value.toDouble() == 1) || (value.isInt() && value.toInt() == 1);
}

const TileForm* tile_form(std::string_view name) {
  static const Forms forms = make_forms();
  const auto found = forms.find(std::string(name));
  return found == forms.end() ? nullptr : &found->second;
}

bool append_steps(
    const TileForm& form, const kernels::TileVariant& variant, const torch::jit::Stack& arguments,
    const TileResult& result, std::vector<TileStep>& steps) {
  const Operand xs(arguments, 0);
  const Operand ys(arguments, form.y);
  const Operand zs(arguments, form.z);
  const Operand numbers(arguments, form.number);
  const size_t before = steps.size();
  const size_t count = form.list ? arguments[0].toListRef().size() : 1;
  const auto refuse = [&] {
    steps.resize(before);
    return false;
  };
  if (!ys.fits(count) || !zs.fits(count) || !numbers.fits(count)) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& x = xs.at(i).toTensor();
    const auto dtype = x.defined() ? tile_dtype(x.scalar_type()) : std::nullopt;
    if (!dtype || x.numel() == 0 || !lie_alike(x, x) || !x.is_non_overlapping_and_dense()) {
      return refuse();
    }
    TileStep step;
    TileOp op = form.op;
    step.dtype = *dtype;
    step.count = x.numel();
    step.bytes = static_cast<int64_t>(x.nbytes());
    step.arguments.x = x.const_data_ptr();
    step.arguments.number = 1;
    if (numbers.exists()) {
      const auto number = number_of(numbers.at(i), x, *dtype);
      if (!number) {
        return refuse();
      }
      // A negative integer 0 is 0.
      step.arguments.number = form.minus && !(*number == 0 && numbers.at(i).isInt()) ? -*number : *number;
    }
    if (ys.exists()) {
      const c10::IValue& value = ys.at(i);
      if (value.isTensor() && lie_alike(value.toTensor(), x)) {
        step.arguments.y = value.toTensor().const_data_ptr();
        step.has_y = true;
      } else if (form.z < 0 && op != TileOp::Lerp) {
        const auto number = number_of(value, x, *dtype);
        if (!number || (numbers.exists() && !stands_for_one(numbers.at(i)))) {
          return refuse();
        }
        step.arguments.number = form.minus ? -*number : *number;
        step.number_from = value.isTensor() ? value.toTensor().const_data_ptr() : nullptr;
        op = form.number_op;
      } else {
        return refuse();
      }
    }
    if (variant.narrow_number && *dtype == TileDtype::BFloat16) {
      step.arguments.number = static_cast<float>(c10::BFloat16(step.arguments.number));
    }
    if (zs.exists()) {
      const c10::IValue& value = zs.at(i);
      if (!value.isTensor() || !lie_alike(value.toTensor(), x)) {
        return refuse();
      }
      step.arguments.z = value.toTensor().const_data_ptr();
      step.has_z = true;
    }
    step.arguments.result = form.in_place ? x.mutable_data_ptr() : result(i, x);
    step.function = kernels::tile_function(op, *dtype, variant);
    if (step.arguments.result == nullptr || step.function == nullptr) {
      return refuse();
    }
    steps.push_back(step);
  }
  return true;
}

} // namespace neuron::eager
