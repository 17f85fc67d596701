#include "kernels/reduced_product.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace neuron::kernels {

namespace {

// A tile of results is held in registers while its sums are built: 12 of 16 registers.
constexpr int kTileRows = 6;
constexpr int kTileColumns = 16;
// For few rows, and for SumOrder::Vector, where several sums of a tile are alive at a time.
constexpr int kLowTileRows = 2;
constexpr int kLanes = 8;
// Numbers of a packed block of b, so that it stays in a core's cache while the rows of a pass by.
constexpr int64_t kBlockNumbers = 96 * 1024;
constexpr int64_t kBlockRows = 48;

constexpr int kRegisters = 8; // of PyTorch's loop that SumOrder::Vector follows
constexpr int64_t kVectorStep = int64_t{kRegisters} * kLanes;
constexpr int64_t kVectorTailStep = 16;
constexpr int kVectorLeaves = 64; // a sum for each number of a step

float to_float(uint16_t bits, ReducedType type) {
  if (type == ReducedType::Float16) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

__m256 load_floats(const uint16_t* numbers, ReducedType type) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
  if (type == ReducedType::Float16) {
    return _mm256_cvtph_ps(bits);
  }
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// To nearest, ties to even; a bfloat16 that is not a number gets PyTorch's bits for it.
__m128i round_floats(__m256 values, ReducedType type) {
  if (type == ReducedType::Float16) {
    return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i unordered = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), unordered);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

int reversed_three_bits(int number) {
  return (number & 1) << 2 | (number & 2) | (number & 4) >> 2;
}

// Where the number of each depth lies in a packed block: the numbers of one sum are neighbours, and the sums come in
// the order in which they are added to each other.
std::vector<int32_t> packed_positions(int64_t depth, SumOrder order) {
  std::vector<int32_t> positions(static_cast<size_t>(depth));
  int32_t next = 0;
  const auto chain = [&](int64_t from, int64_t end, int64_t step) {
    for (int64_t l = from; l < end; l += step) {
      positions[static_cast<size_t>(l)] = next++;
    }
  };
  if (order == SumOrder::Sequential) {
    chain(0, depth, 1);
  } else if (order == SumOrder::Four) {
    const int64_t whole = depth / 4 * 4;
    chain(0, whole, 4);
    chain(whole, depth, 1); // what is left over belongs to the first sum
    for (int64_t k = 1; k < 4; ++k) {
      chain(k, whole, 4);
    }
  } else {
    const int64_t whole = depth / kVectorStep * kVectorStep;
    const int64_t vectors = depth / kVectorTailStep * kVectorTailStep;
    for (int leaf = 0; leaf < kVectorLeaves; ++leaf) {
      const int lane = reversed_three_bits(leaf / kRegisters);
      const int reg = reversed_three_bits(leaf % kRegisters);
      chain(reg * kLanes + lane, whole, kVectorStep);
    }
    for (int leaf = 0; leaf < kLanes; ++leaf) {
      chain(whole + reversed_three_bits(leaf), vectors, kLanes);
    }
    chain(vectors, depth, 1);
  }
  return positions;
}

template <int Rows>
struct Tile {
  __m256 low[Rows];
  __m256 high[Rows];

  void clear() {
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      low[i] = high[i] = _mm256_setzero_ps();
    }
  }
  void add(const Tile& other) {
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      low[i] = _mm256_add_ps(low[i], other.low[i]);
      high[i] = _mm256_add_ps(high[i], other.high[i]);
    }
  }
  // Adds `count` products, one after the other, and moves on in the packed blocks.
  void chain(const float*& a, const float*& b, int64_t count) {
    Tile sums = *this; // a local one lives in registers
    const float* from_a = a;
    const float* from_b = b;
    for (int64_t l = 0; l < count; ++l, from_a += Rows, from_b += kTileColumns) {
      const __m256 b_low = _mm256_load_ps(from_b);
      const __m256 b_high = _mm256_load_ps(from_b + kLanes);
#pragma GCC unroll 6
      for (int i = 0; i < Rows; ++i) {
        const __m256 number = _mm256_broadcast_ss(from_a + i);
        sums.low[i] = _mm256_fmadd_ps(number, b_low, sums.low[i]);
        sums.high[i] = _mm256_fmadd_ps(number, b_high, sums.high[i]);
      }
    }
    *this = sums;
    a = from_a;
    b = from_b;
  }
};

// The sum of 2^Levels chains of `count` products, neighbours first. Inlined, so that waiting sums stay in registers.
template <int Rows, int Levels>
[[gnu::always_inline]] inline Tile<Rows> add_tree(const float*& a, const float*& b, int64_t count) {
  Tile<Rows> total;
  if constexpr (Levels == 0) {
    total.clear();
    total.chain(a, b, count);
  } else {
    total = add_tree<Rows, Levels - 1>(a, b, count);
    total.add(add_tree<Rows, Levels - 1>(a, b, count));
  }
  return total;
}

// The same over 2^Levels trees of eight chains.
template <int Rows, int Levels>
Tile<Rows> add_trees(const float*& a, const float*& b, int64_t count) {
  if constexpr (Levels == 0) {
    return add_tree<Rows, 3>(a, b, count);
  } else {
    Tile<Rows> total = add_trees<Rows, Levels - 1>(a, b, count);
    total.add(add_trees<Rows, Levels - 1>(a, b, count));
    return total;
  }
}

template <int Rows>
void add_products(Tile<Rows>& total, const float* a, const float* b, int64_t depth, SumOrder order) {
  if (order == SumOrder::Sequential) {
    total.chain(a, b, depth); // total holds the addend
    return;
  }
  total.clear();
  if (order == SumOrder::Four) {
    total.chain(a, b, depth / 4 + depth % 4);
    for (int k = 1; k < 4; ++k) {
      Tile<Rows> sum;
      sum.clear();
      sum.chain(a, b, depth / 4);
      total.add(sum);
    }
    return;
  }
  if (const int64_t count = depth / kVectorStep; count > 0) {
    total = add_trees<Rows, 3>(a, b, count);
  }
  if (const int64_t count = depth % kVectorStep / kVectorTailStep * 2; count > 0) {
    total.add(add_trees<Rows, 0>(a, b, count));
  }
  total.chain(a, b, depth % kVectorTailStep);
}

// One block of the product, with its operands packed.
struct Block {
  const ReducedProduct& product;
  SumOrder order;

  template <int Rows>
  Tile<Rows> addend(int64_t row, int64_t column, int rows, int columns) const {
    Tile<Rows> tile;
    tile.clear();
    for (int i = 0; i < rows; ++i) {
      const uint16_t* from = product.addend + (row + i) * product.addend_row + column * product.addend_column;
      alignas(32) float numbers[kTileColumns] = {};
      for (int j = 0; j < columns; ++j) {
        numbers[j] = to_float(from[j * product.addend_column], product.type);
      }
      tile.low[i] = _mm256_load_ps(numbers);
      tile.high[i] = _mm256_load_ps(numbers + kLanes);
    }
    return tile;
  }

  template <int Rows>
  void store(const Tile<Rows>& tile, int64_t row, int64_t column, int rows, int columns) const {
    for (int i = 0; i < rows; ++i) {
      alignas(32) uint16_t numbers[kTileColumns];
      _mm_store_si128(reinterpret_cast<__m128i*>(numbers), round_floats(tile.low[i], product.type));
      _mm_store_si128(reinterpret_cast<__m128i*>(numbers + kLanes), round_floats(tile.high[i], product.type));
      uint16_t* to = product.result + (row + i) * product.result_row + column * product.result_column;
      if (columns == kTileColumns && product.result_column == 1) {
        std::memcpy(to, numbers, sizeof(numbers));
      } else {
        for (int j = 0; j < columns; ++j) {
          to[j * product.result_column] = numbers[j];
        }
      }
    }
  }

  template <int Rows>
  void run(const float* a, const float* b, int64_t row, int64_t column, int rows, int columns) const {
    Tile<Rows> tile;
    if (product.addend == nullptr) {
      tile.clear();
      add_products(tile, a, b, product.depth, order);
    } else if (order == SumOrder::Sequential) {
      tile = addend<Rows>(row, column, rows, columns);
      add_products(tile, a, b, product.depth, order);
    } else {
      add_products(tile, a, b, product.depth, order);
      tile.add(addend<Rows>(row, column, rows, columns));
    }
    store(tile, row, column, rows, columns);
  }
};

void pack_a(
    const ReducedProduct& product, const std::vector<int32_t>& positions, int64_t row, int rows, int height,
    float* packed) {
  if (rows < height) {
    std::fill_n(packed, product.depth * height, 0.0f);
  }
  for (int i = 0; i < rows; ++i) {
    const uint16_t* from = product.a + (row + i) * product.a_row;
    int64_t l = 0;
    if (product.a_depth == 1) {
      alignas(32) float numbers[kLanes];
      for (; l + kLanes <= product.depth; l += kLanes) {
        _mm256_store_ps(numbers, load_floats(from + l, product.type));
        for (int k = 0; k < kLanes; ++k) {
          packed[int64_t{positions[static_cast<size_t>(l + k)]} * height + i] = numbers[k];
        }
      }
    }
    for (; l < product.depth; ++l) {
      packed[int64_t{positions[static_cast<size_t>(l)]} * height + i] =
          to_float(from[l * product.a_depth], product.type);
    }
  }
}

// The same for rows [top, bottom) whose numbers of one depth are neighbours: panel after panel.
void pack_a_columns(
    const ReducedProduct& product, const std::vector<int32_t>& positions, int64_t top, int64_t bottom, int height,
    float* packed) {
  alignas(32) float numbers[kBlockRows + kLanes] = {};
  const int64_t rows = bottom - top;
  for (int64_t l = 0; l < product.depth; ++l) {
    const uint16_t* from = product.a + top + l * product.a_depth;
    int64_t i = 0;
    for (; i + kLanes <= rows; i += kLanes) {
      _mm256_store_ps(numbers + i, load_floats(from + i, product.type));
    }
    for (; i < rows; ++i) {
      numbers[i] = to_float(from[i], product.type);
    }
    float* to = packed + int64_t{positions[static_cast<size_t>(l)]} * height;
    for (i = 0; i < rows; i += height, to += product.depth * height) {
      std::memcpy(to, numbers + i, static_cast<size_t>(height) * sizeof(float));
    }
  }
}

void transpose(__m256 (&rows)[kLanes]) {
  __m256 pairs[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  __m256 fours[kLanes];
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// Sixteen columns, those past the last one zero.
void pack_b(
    const ReducedProduct& product, const std::vector<int32_t>& positions, int64_t column, int columns, float* packed) {
  const uint16_t* from = product.b + column * product.b_column;
  const auto target = [&](int64_t l) { return packed + int64_t{positions[static_cast<size_t>(l)]} * kTileColumns; };
  int64_t l = 0;
  if (columns == kTileColumns && product.b_column == 1) {
    for (; l < product.depth; ++l) {
      const uint16_t* numbers = from + l * product.b_depth;
      _mm256_store_ps(target(l), load_floats(numbers, product.type));
      _mm256_store_ps(target(l) + kLanes, load_floats(numbers + kLanes, product.type));
    }
    return;
  }
  if (columns == kTileColumns && product.b_depth == 1) {
    for (; l + kLanes <= product.depth; l += kLanes) {
      for (int half = 0; half < kTileColumns; half += kLanes) {
        __m256 block[kLanes];
        for (int j = 0; j < kLanes; ++j) {
          block[j] = load_floats(from + (half + j) * product.b_column + l, product.type);
        }
        transpose(block);
        for (int k = 0; k < kLanes; ++k) {
          _mm256_store_ps(target(l + k) + half, block[k]);
        }
      }
    }
  }
  for (; l < product.depth; ++l) {
    float* to = target(l);
    for (int j = 0; j < kTileColumns; ++j) {
      to[j] = j < columns ? to_float(from[l * product.b_depth + j * product.b_column], product.type) : 0.0f;
    }
  }
}

// Memory for packed blocks. Each thread keeps its own as long as it is small, so that its pages are there already.
class Scratch {
 public:
  ~Scratch() {
    if (memory_.size() > kKeptNumbers) {
      memory_ = {};
    }
  }
  float* numbers(int64_t count) {
    const auto needed = static_cast<size_t>(count) + kAlignment / sizeof(float);
    if (memory_.size() < needed) {
      memory_.resize(needed);
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  static constexpr size_t kAlignment = 32;
  static constexpr size_t kKeptNumbers = 512 * 1024;
  static thread_local std::vector<float> memory_;
};

thread_local std::vector<float> Scratch::memory_;

ReducedProduct transposed(const ReducedProduct& product) {
  ReducedProduct other = product;
  std::swap(other.rows, other.columns);
  std::swap(other.a, other.b);
  other.a_row = product.b_column;
  other.a_depth = product.b_depth;
  other.b_depth = product.a_depth;
  other.b_column = product.a_row;
  std::swap(other.addend_row, other.addend_column);
  std::swap(other.result_row, other.result_column);
  return other;
}

} // namespace

bool can_multiply_reduced() noexcept {
  static const bool can =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return can;
}

void multiply_reduced(const ReducedProduct& given, SumOrder order) {
  // A product's factors may be swapped, so the side with more numbers fills the registers.
  const bool swap = given.columns < kTileColumns && given.rows > given.columns;
  const ReducedProduct product = swap ? transposed(given) : given;
  const std::vector<int32_t> positions = packed_positions(product.depth, order);
  const Block block{product, order};
  const int64_t tiles_in_block = std::max<int64_t>(1, kBlockNumbers / (product.depth * kTileColumns));
  const int64_t tiles = std::min(tiles_in_block, (product.columns + kTileColumns - 1) / kTileColumns);
  const int height = order == SumOrder::Vector || product.rows <= kLowTileRows ? kLowTileRows : kTileRows;
  const int64_t rows_in_block = std::min(kBlockRows, (product.rows + height - 1) / height * height);

  Scratch scratch;
  float* const b = scratch.numbers(product.depth * (tiles * kTileColumns + rows_in_block));
  float* const a = b + product.depth * tiles * kTileColumns;

  for (int64_t left = 0; left < product.columns; left += tiles * kTileColumns) {
    const int64_t right = std::min(product.columns, left + tiles * kTileColumns);
    for (int64_t column = left; column < right; column += kTileColumns) {
      const int columns = static_cast<int>(std::min<int64_t>(kTileColumns, right - column));
      pack_b(product, positions, column, columns, b + (column - left) * product.depth);
    }
    for (int64_t top = 0; top < product.rows; top += kBlockRows) {
      const int64_t bottom = std::min(product.rows, top + kBlockRows);
      if (product.a_row == 1) {
        pack_a_columns(product, positions, top, bottom, height, a);
      } else {
        for (int64_t row = top; row < bottom; row += height) {
          const int rows = static_cast<int>(std::min<int64_t>(height, bottom - row));
          pack_a(product, positions, row, rows, height, a + (row - top) * product.depth);
        }
      }
      for (int64_t column = left; column < right; column += kTileColumns) {
        const int columns = static_cast<int>(std::min<int64_t>(kTileColumns, right - column));
        const float* const packed_b = b + (column - left) * product.depth;
        for (int64_t row = top; row < bottom; row += height) {
          const int rows = static_cast<int>(std::min<int64_t>(height, bottom - row));
          const float* const packed_a = a + (row - top) * product.depth;
          if (height == kLowTileRows) {
            block.run<kLowTileRows>(packed_a, packed_b, row, column, rows, columns);
          } else {
            block.run<kTileRows>(packed_a, packed_b, row, column, rows, columns);
          }
        }
      }
    }
  }
}

} // namespace neuron::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else

namespace neuron::kernels {

bool can_multiply_reduced() noexcept {
  return false;
}
void multiply_reduced(const ReducedProduct&, SumOrder) {}

} // namespace neuron::kernels

#endif
