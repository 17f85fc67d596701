// What the forward and the backward kernel of FlexAttention share. This text is put in front of generated code, so it
// includes nothing but PyTorch's headers and everything in it is local to one kernel's library.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/inductor/cpp_prefix.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace flex {
namespace {

using Vec = at::vec::Vectorized<float>;

constexpr int64_t kLanes = Vec::size();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Logarithms leave the kernels in base 2, as PyTorch's FlexAttention operators have them.
constexpr float kLn2 = 0.693147180559945309417f;

// Stands for a modification that a graph doesn't have.
struct None {};

template <typename T>
constexpr bool is_given = !std::is_same_v<std::decay_t<T>, None>;

// Memory without initial values, aligned for any vector.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count = 0) {
    if (count > 0) {
      const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (data_ == nullptr) {
        throw std::bad_alloc();
      }
    }
  }
  ~Buffer() { std::free(data_); }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;

  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

// [batch, head, position, feature]; features are contiguous. A batch stride of 0 serves a tensor with one batch to all.
template <typename T>
struct Tensor {
  T* data;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t row_stride;

  T* row(int64_t batch, int64_t head, int64_t position) const {
    return data + batch * batch_stride + head * head_stride + position * row_stride;
  }
};

// One half of a block mask: for each row of blocks, which blocks are to be computed. Batch and head stride are 0 where
// one table serves all. `count` is null if the mask has no such blocks.
struct BlockTable {
  const int32_t* count;
  int64_t count_batch_stride, count_head_stride, count_row_stride;
  const int32_t* index;
  int64_t index_batch_stride, index_head_stride, index_row_stride, index_stride;

  int64_t blocks(int64_t batch, int64_t head, int64_t row) const {
    return count == nullptr ? 0 : count[batch * count_batch_stride + head * count_head_stride + row * count_row_stride];
  }
  int64_t block(int64_t batch, int64_t head, int64_t row, int64_t i) const {
    return index[batch * index_batch_stride + head * index_head_stride + row * index_row_stride + i * index_stride];
  }
};

// What the forward and the backward kernel are given alike.
template <typename scalar_t>
struct Attention {
  Tensor<const scalar_t> query, key, value;
  int64_t batches, heads, heads_per_key_head, query_length, key_length, features, value_features;
  // Rows are blocks of what a kernel goes through in its units of work (queries forward, keys backward).
  BlockTable partial, full;
  int64_t query_block, key_block;
  float scale;
};

// Positions [begin, end) that are computed together; masked: the mask decides about each element.
struct Run {
  int64_t begin, end;
  bool masked;
};

inline void append_runs(
    std::vector<Run>& runs, const BlockTable& table, bool masked, int64_t batch, int64_t head, int64_t row,
    int64_t block_size, int64_t length) {
  const int64_t blocks = table.blocks(batch, head, row);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = table.block(batch, head, row, i) * block_size;
    if (begin < 0 || begin >= length) {
      continue;
    }
    const int64_t end = std::min(begin + block_size, length);
    if (!runs.empty() && runs.back().end == begin && runs.back().masked == masked) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end, masked});
    }
  }
}

// Cuts runs down to `count` positions from number `first` on, counted over all runs.
inline void keep_positions(std::vector<Run>& runs, int64_t first, int64_t count) {
  std::vector<Run> kept;
  int64_t before = 0;
  for (const Run& run : runs) {
    const int64_t begin = std::max(run.begin, run.begin + first - before);
    const int64_t end = std::min(run.end, run.begin + first + count - before);
    if (begin < end) {
      kept.push_back({begin, end, run.masked});
    }
    before += run.end - run.begin;
  }
  runs = std::move(kept);
}

// A tile's positions along one dimension, and the row of blocks it lies in.
struct Tile {
  int64_t begin, size, block;
};

inline std::vector<Tile> cut_into_tiles(int64_t length, int64_t block_size, int64_t tile_size) {
  std::vector<Tile> tiles;
  for (int64_t block = 0; block * block_size < length; ++block) {
    const int64_t end = std::min((block + 1) * block_size, length);
    for (int64_t begin = block * block_size; begin < end; begin += tile_size) {
      tiles.push_back({begin, std::min(tile_size, end - begin), block});
    }
  }
  return tiles;
}

// Cuts [0, costs.size()) into `parts` ranges of nearly equal cost; the cuts depend on nothing but the costs.
inline std::vector<int64_t> cut_by_cost(const std::vector<int64_t>& costs, int64_t parts) {
  int64_t total = 0;
  for (const int64_t cost : costs) {
    total += cost;
  }
  std::vector<int64_t> cuts{0};
  int64_t sum = 0;
  const auto units = static_cast<int64_t>(costs.size());
  for (int64_t unit = 0; unit < units; ++unit) {
    // A unit goes to the part in which its middle lies.
    const int64_t part = total == 0 ? 0 : std::min(parts - 1, (sum + costs[unit] / 2) * parts / total);
    while (static_cast<int64_t>(cuts.size()) <= part) {
      cuts.push_back(unit);
    }
    sum += costs[unit];
  }
  cuts.resize(parts + 1, units);
  return cuts;
}

// The threads a kernel called here may use.
inline int64_t available_threads() {
  return at::in_parallel_region() ? 1 : at::get_num_threads();
}

// c[m, n] = a[m, k] b[k, n], or added to c.
inline void multiply(
    int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
    bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
}

// out[j, i] = scale * in[i, j] for in[rows, columns]
inline void transpose(
    const float* in, int64_t ld_in, int64_t rows, int64_t columns, float scale, float* out, int64_t ld_out) {
  const Vec factor(scale);
  int64_t i = 0;
  for (; i + kLanes <= rows; i += kLanes) {
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      alignas(64) float block[kLanes * kLanes];
      at::vec::transpose_mxn<float, kLanes, kLanes>(in + i * ld_in + j, ld_in, block, kLanes);
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        (Vec::loadu(block + lane * kLanes) * factor).store(out + (j + lane) * ld_out + i);
      }
    }
    for (; j < columns; ++j) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        out[j * ld_out + i + lane] = in[(i + lane) * ld_in + j] * scale;
      }
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      out[j * ld_out + i] = in[i * ld_in + j] * scale;
    }
  }
}

struct Matrix {
  const float* data;
  int64_t ld;
};

// A tile as the float matrix that multiply() reads: the tile itself, or a converted copy in `scratch`.
template <typename T>
inline Matrix as_float(const T* tile, int64_t row_stride, int64_t rows, int64_t columns, float* scratch) {
  if constexpr (std::is_same_v<T, float>) {
    // Rows of an expanded tensor may overlap, which BLAS refuses.
    if (row_stride >= columns || rows == 1) {
      return {tile, std::max(row_stride, columns)};
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    at::vec::convert(tile + i * row_stride, scratch + i * columns, columns);
  }
  return {scratch, columns};
}

inline void scale_row(float* row, float factor, int64_t size) {
  at::vec::map<float>([factor](Vec x) { return x * Vec(factor); }, row, row, size);
}

// Unlike the library's fast exponential, keeps NaN.
inline Vec exponential(const Vec& x) {
  return Vec::blendv(x.exp_u20(), x, x != x);
}

// Writes numbers first, first + 1, ...: the positions that modifications see.
inline void count_from(int64_t first, int64_t size, int32_t* out) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = static_cast<int32_t>(first + i);
  }
}

} // namespace
} // namespace flex
