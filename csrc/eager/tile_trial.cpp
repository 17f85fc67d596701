#include "eager/tile_trial.h"

#include "eager/tile_form.h"
#include "eager/trial.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <vector>

namespace neuron::eager {

namespace {

using kernels::TileOp;

// A product that is rounded before it is added shows in one of some 256 sums of bfloat16 that nearly cancel, and not at
// all in others. So there have to be thousands of them.
constexpr int64_t kNumbers = 4096;
// Kernels compute what is left at the end of a range in another way than what fills vectors.
constexpr int64_t kShortRanges = 33;
// As learning rates, decay, averages of optimizers; above and below a half, which is where lerp changes its formula.
constexpr double kScalars[] = {0.73908513, 0.26894142, -1.7320508, 1.0, 0.0, 3.0};

struct Operands {
  at::Tensor x;
  at::Tensor y;
  at::Tensor z;
};

at::Tensor ordinary(c10::ScalarType dtype, const at::Generator& generator) {
  return at::randn({kNumbers}, generator, at::TensorOptions(at::kCPU)).to(dtype);
}

at::Tensor any_bits(c10::ScalarType dtype, const at::Generator& generator) {
  const bool narrow = dtype == c10::kBFloat16;
  const auto bits = at::randint(
      narrow ? -32768 : -2147483648LL, narrow ? 32768 : 2147483648LL, {kNumbers}, generator,
      at::TensorOptions(at::kCPU).dtype(narrow ? c10::kShort : c10::kInt));
  return bits.view(dtype);
}

// The x for which the operator's sum is nearly 0 in exact arithmetic.
void make_cancel(Operands& operands, const TileForm& form, double scalar, c10::ScalarType dtype) {
  const double s = form.minus ? -scalar : scalar;
  const auto y = operands.y.to(c10::kDouble);
  const auto z = operands.z.to(c10::kDouble);
  switch (form.op) {
    case TileOp::Add:
      operands.x = y.mul(-s).to(dtype);
      return;
    case TileOp::AddCmul:
      operands.x = y.mul(z).mul(-s).to(dtype);
      return;
    case TileOp::AddCdiv:
      operands.x = y.div(z).mul(-s).to(dtype);
      return;
    case TileOp::Lerp:
      if (s != 0 && s != 1) { // x + s * (y - x), and from a half on y - (y - x) * (1 - s): the same zero
        operands.x = y.mul(s / (s - 1)).to(dtype);
      }
      return;
    default:
      return;
  }
}

// An argument like `given`, of the trial's tensors and numbers.
c10::IValue like(const c10::IValue& given, const at::Tensor& tensor, double scalar) {
  if (given.isTensorList()) {
    return c10::List<at::Tensor>({tensor});
  }
  if (given.isTensor() && given.toTensor().defined()) {
    const at::Tensor& it = given.toTensor();
    return it.dim() == 0 ? at::full({}, scalar, it.options()) : tensor;
  }
  if (given.isDouble()) {
    return scalar;
  }
  if (given.isInt()) {
    return static_cast<int64_t>(scalar);
  }
  if (given.isList()) {
    const auto items = given.toListRef();
    TORCH_CHECK(!items.empty(), "nothing to try");
    const c10::IValue item = like(items[0], tensor, scalar);
    return item.isInt() ? c10::List<at::Scalar>({at::Scalar(item.toInt())})
                        : c10::List<at::Scalar>({at::Scalar(item.toDouble())});
  }
  return given;
}

torch::jit::Stack arguments_like(
    const torch::jit::Stack& given, const TileForm& form, const Operands& operands, double scalar) {
  torch::jit::Stack made;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto index = static_cast<int8_t>(i);
    const bool keeps = index == form.number && stands_for_one(given[i]); // which tile_choice.h keeps apart
    const auto& tensor = index == form.y ? operands.y : index == form.z ? operands.z : operands.x;
    made.push_back(keeps ? given[i] : like(given[i], tensor, scalar));
  }
  return made;
}

at::Tensor only_tensor(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : value.toTensorList().get(0);
}

at::Tensor by_host(const c10::OperatorHandle& op, const TileForm& form, torch::jit::Stack arguments) {
  const auto first = only_tensor(arguments[0]);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
  return form.in_place ? first : only_tensor(arguments[0]);
}

at::Tensor by_tiles(const TileForm& form, const kernels::TileVariant& variant, const torch::jit::Stack& arguments) {
  at::Tensor made;
  std::vector<TileStep> steps;
  const auto make = [&](size_t, const at::Tensor& tensor) {
    made = at::empty_like(tensor);
    return made.mutable_data_ptr();
  };
  TORCH_CHECK(append_steps(form, variant, arguments, make, steps), "not for tiles");
  for (const TileStep& step : steps) {
    step.function(step.arguments, step.count);
  }
  return form.in_place ? only_tensor(arguments[0]) : made;
}

// Which bits stand for "not a number" is up to a kernel.
bool same(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = a.scalar_type() == c10::kBFloat16 ? c10::kShort : c10::kInt;
  return a.scalar_type() == b.scalar_type() && a.contiguous()
                                                   .view(bits)
                                                   .eq(b.contiguous().view(bits))
                                                   .logical_or(a.ne(a).logical_and(b.ne(b)))
                                                   .all()
                                                   .item()
                                                   .toBool();
}

class Trial {
 public:
  Trial(
      const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& given,
      const kernels::TileVariant& variant)
      : op_(op), form_(form), given_(given), variant_(variant) {}

  bool same_for(const Operands& operands, double scalar) const {
    const auto expected = tiles(operands, scalar, [](const at::Tensor& t) { return t.clone(); });
    const auto apart = [](const at::Tensor& t) { // with gaps: nothing that fills vectors
      auto wide = at::empty({t.numel(), 2}, t.options());
      return wide.select(1, 0).copy_(t);
    };
    if (!same(expected, host(operands, scalar, [](const at::Tensor& t) { return t.clone(); })) ||
        !same(expected, host(operands, scalar, apart))) {
      return false;
    }
    for (int64_t length = 1, begin = 0; length <= kShortRanges; begin += length++) {
      const auto piece = [&](const at::Tensor& t) { return t.narrow(0, begin, length).clone(); };
      if (!same(tiles(operands, scalar, piece), host(operands, scalar, piece)) ||
          !same(tiles(operands, scalar, piece), expected.narrow(0, begin, length))) {
        return false;
      }
    }
    return true;
  }

 private:
  template <class Form>
  torch::jit::Stack arguments(const Operands& operands, double scalar, const Form& form) const {
    return arguments_like(given_, form_, {form(operands.x), form(operands.y), form(operands.z)}, scalar);
  }
  template <class Form>
  at::Tensor tiles(const Operands& operands, double scalar, const Form& form) const {
    return by_tiles(form_, variant_, arguments(operands, scalar, form));
  }
  template <class Form>
  at::Tensor host(const Operands& operands, double scalar, const Form& form) const {
    return by_host(op_, form_, arguments(operands, scalar, form));
  }

  const c10::OperatorHandle& op_;
  const TileForm& form_;
  const torch::jit::Stack& given_;
  const kernels::TileVariant& variant_;
};

} // namespace

bool same_bits_by_tiles(
    const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments,
    const kernels::TileVariant& variant) {
  const TrialValues values; // for its generator: the user's numbers must not depend on trials
  const auto& generator = values.generator();
  const c10::IValue& first = arguments[0];
  const auto dtype = first.isTensor() ? first.toTensor().scalar_type() : first.toTensorList().get(0).scalar_type();
  const Trial trial(op, form, arguments, variant);
  for (const double scalar : kScalars) {
    Operands operands{ordinary(dtype, generator), ordinary(dtype, generator), ordinary(dtype, generator)};
    if (!trial.same_for(operands, scalar)) {
      return false;
    }
    make_cancel(operands, form, scalar, dtype);
    if (!trial.same_for(operands, scalar)) {
      return false;
    }
    if (!trial.same_for({any_bits(dtype, generator), any_bits(dtype, generator), any_bits(dtype, generator)}, scalar)) {
      return false;
    }
  }
  return true;
}

} // namespace neuron::eager
