// Element-wise operators over one tile: a few thousand numbers that lie in a core's nearest cache.
//
// Each computes what PyTorch's CPU kernel of the same name computes, bit for bit; eager/tile_choice.h tries that.
#pragma once

#include <cstdint>

namespace neuron::kernels {

enum class TileDtype : uint8_t { Float32, BFloat16 };

// x, y, z: tensors; s: a number. The results of 16-bit dtypes are rounded after each operator.
enum class TileOp : uint8_t {
  Add,       // x + s * y
  AddNumber, // x + s
  Mul,       // x * y
  MulNumber, // x * s
  Div,       // x / y
  DivNumber, // x / s
  Sqrt,
  Rsqrt,
  Reciprocal,
  Neg,
  Relu,
  AddCmul, // x + s * y * z
  AddCdiv, // x + s * y / z
  Lerp,    // from x to y by s
};

struct TileArguments {
  void* result = nullptr; // may be one of the tensors
  const void* x = nullptr;
  const void* y = nullptr;
  const void* z = nullptr;
  float number = 0;
};

using TileFunction = void (*)(const TileArguments& arguments, int64_t count);

// In what PyTorch's kernels differ from each other and from build to build.
struct TileVariant {
  bool fused = false;         // products are added without being rounded first
  bool narrow_number = false; // the number is rounded to the tensors' dtype first
  bool host_root = false; // square roots are those of the library that PyTorch's kernel asks, which rounds otherwise
};

// Null on processors without the instructions, and for a variant that there is not. `narrow_number` is up to the
// caller.
TileFunction tile_function(TileOp op, TileDtype dtype, const TileVariant& variant) noexcept;

} // namespace neuron::kernels
