#include "kernels/tile_op.h"

#if defined(__x86_64__)

#include <dlfcn.h>
#include <immintrin.h>

#include <cmath>
#include <cstring>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#pragma GCC optimize("fp-contract=off")
#endif

namespace neuron::kernels {

namespace {

constexpr int kLanes = 8;

struct Float32 {
  using Stored = float;
  static __m256 load(const float* numbers) { return _mm256_loadu_ps(numbers); }
  static void store(float* numbers, __m256 values) { _mm256_storeu_ps(numbers, values); }
};

struct BFloat16 {
  using Stored = uint16_t;
  static __m256 load(const uint16_t* numbers) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // To nearest, ties to even; what is not a number gets PyTorch's bits for it.
  static void store(uint16_t* numbers, __m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i unordered = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0xffff), unordered);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(numbers),
        _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
};

template <bool Fused>
__m256 multiply_add(__m256 a, __m256 b, __m256 c) {
  return Fused ? _mm256_fmadd_ps(a, b, c) : _mm256_add_ps(_mm256_mul_ps(a, b), c);
}

template <TileOp Op, bool Fused>
__m256 compute(__m256 x, __m256 y, __m256 z, __m256 number) {
  switch (Op) {
    case TileOp::Add:
      return multiply_add<Fused>(number, y, x);
    case TileOp::AddNumber:
      return _mm256_add_ps(x, number);
    case TileOp::Mul:
      return _mm256_mul_ps(x, y);
    case TileOp::MulNumber:
      return _mm256_mul_ps(x, number);
    case TileOp::Div:
      return _mm256_div_ps(x, y);
    case TileOp::DivNumber:
      return _mm256_div_ps(x, number);
    case TileOp::Sqrt:
      return _mm256_sqrt_ps(x);
    case TileOp::Rsqrt:
      return _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_sqrt_ps(x));
    case TileOp::Reciprocal:
      return _mm256_div_ps(_mm256_set1_ps(1.0f), x);
    case TileOp::Neg:
      return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    case TileOp::Relu:
      return _mm256_max_ps(_mm256_setzero_ps(), x); // the second operand where one is not a number
    case TileOp::AddCmul:
      return multiply_add<Fused>(_mm256_mul_ps(number, y), z, x);
    case TileOp::AddCdiv:
      return _mm256_add_ps(x, _mm256_div_ps(_mm256_mul_ps(number, y), z));
    case TileOp::Lerp: {
      const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), number);
      const __m256 from_end = _mm256_cmp_ps(size, _mm256_set1_ps(0.5f), _CMP_NLT_UQ);
      const __m256 weight = _mm256_blendv_ps(number, _mm256_sub_ps(number, _mm256_set1_ps(1.0f)), from_end);
      return multiply_add<Fused>(weight, _mm256_sub_ps(y, x), _mm256_blendv_ps(x, y, from_end));
    }
  }
  __builtin_unreachable();
}

template <class Dtype, TileOp Op, bool Fused>
void run(const TileArguments& arguments, int64_t count) {
  using Stored = typename Dtype::Stored;
  constexpr bool kHasY = Op == TileOp::Add || Op == TileOp::Mul || Op == TileOp::Div || Op == TileOp::AddCmul ||
                         Op == TileOp::AddCdiv || Op == TileOp::Lerp;
  constexpr bool kHasZ = Op == TileOp::AddCmul || Op == TileOp::AddCdiv;
  auto* const result = static_cast<Stored*>(arguments.result);
  const auto* const x = static_cast<const Stored*>(arguments.x);
  const auto* const y = static_cast<const Stored*>(arguments.y);
  const auto* const z = static_cast<const Stored*>(arguments.z);
  const __m256 number = _mm256_set1_ps(arguments.number);
  const __m256 none = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Dtype::store(
        result + i,
        compute<Op, Fused>(
            Dtype::load(x + i), kHasY ? Dtype::load(y + i) : none, kHasZ ? Dtype::load(z + i) : none, number));
  }
  if (i == count) {
    return;
  }
  const auto left = static_cast<size_t>(count - i) * sizeof(Stored);
  alignas(32) Stored rest[4][kLanes] = {};
  std::memcpy(rest[0], x + i, left);
  if (kHasY) {
    std::memcpy(rest[1], y + i, left);
  }
  if (kHasZ) {
    std::memcpy(rest[2], z + i, left);
  }
  Dtype::store(rest[3], compute<Op, Fused>(Dtype::load(rest[0]), Dtype::load(rest[1]), Dtype::load(rest[2]), number));
  std::memcpy(result + i, rest[3], left);
}

template <class Dtype, bool Fused>
TileFunction find(TileOp op) {
  switch (op) {
    case TileOp::Add:
      return &run<Dtype, TileOp::Add, Fused>;
    case TileOp::AddNumber:
      return &run<Dtype, TileOp::AddNumber, Fused>;
    case TileOp::Mul:
      return &run<Dtype, TileOp::Mul, Fused>;
    case TileOp::MulNumber:
      return &run<Dtype, TileOp::MulNumber, Fused>;
    case TileOp::Div:
      return &run<Dtype, TileOp::Div, Fused>;
    case TileOp::DivNumber:
      return &run<Dtype, TileOp::DivNumber, Fused>;
    case TileOp::Sqrt:
      return &run<Dtype, TileOp::Sqrt, Fused>;
    case TileOp::Rsqrt:
      return &run<Dtype, TileOp::Rsqrt, Fused>;
    case TileOp::Reciprocal:
      return &run<Dtype, TileOp::Reciprocal, Fused>;
    case TileOp::Neg:
      return &run<Dtype, TileOp::Neg, Fused>;
    case TileOp::Relu:
      return &run<Dtype, TileOp::Relu, Fused>;
    case TileOp::AddCmul:
      return &run<Dtype, TileOp::AddCmul, Fused>;
    case TileOp::AddCdiv:
      return &run<Dtype, TileOp::AddCdiv, Fused>;
    case TileOp::Lerp:
      return &run<Dtype, TileOp::Lerp, Fused>;
  }
  return nullptr;
}

template <class Dtype>
TileFunction find(TileOp op, bool fused) {
  return fused ? find<Dtype, true>(op) : find<Dtype, false>(op);
}

// MKL's square roots, which torch may have in it, and which are not always the nearest number. Not linked, because that
// depends on how torch was built. The mode is PyTorch's: high accuracy, denormal numbers kept, no errors.
using HostRoot = void (*)(int count, const float* x, float* result, int64_t mode);
const auto g_host_root = reinterpret_cast<HostRoot>(dlsym(RTLD_DEFAULT, "vmsSqrt"));
constexpr int64_t kHostMode = 0x2 | 0x140000 | 0x100;

void run_host_root(const TileArguments& arguments, int64_t count) {
  g_host_root(
      static_cast<int>(count), static_cast<const float*>(arguments.x), static_cast<float*>(arguments.result),
      kHostMode);
}

bool has_instructions() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

} // namespace

TileFunction tile_function(TileOp op, TileDtype dtype, const TileVariant& variant) noexcept {
  if (!has_instructions()) {
    return nullptr;
  }
  if (variant.host_root) {
    return op == TileOp::Sqrt && dtype == TileDtype::Float32 && g_host_root != nullptr ? &run_host_root : nullptr;
  }
  return dtype == TileDtype::Float32 ? find<Float32>(op, variant.fused) : find<BFloat16>(op, variant.fused);
}

} // namespace neuron::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else

namespace neuron::kernels {

TileFunction tile_function(TileOp, TileDtype, const TileVariant&) noexcept {
  return nullptr;
}

} // namespace neuron::kernels

#endif
