// Block-sparse attention with an online softmax. A unit of work is one tile of queries of one head; units are shared
// out by their cost, and each one is computed by one thread, so results don't depend on the number of threads.
// Decoding has few tiles and many keys. There a unit is a part of a tile's keys, and the parts are joined in the end.
#pragma once

namespace flex {
namespace {

template <typename scalar_t>
struct ForwardArguments : Attention<scalar_t> {
  Tensor<scalar_t> out;
  float* logsumexp; // [batch, head, query], contiguous, as max_scores; null if nobody reads it
  float* max_scores;
  int64_t key_batches;
};

constexpr int64_t kForwardQueryTile = 128;
constexpr int64_t kForwardKeyTile = 256;
// Up to this many queries, scores are dot products: arranging the keys for a matrix product would cost more.
constexpr int64_t kFewQueries = 4;
// With fewer tiles than this, a tile of few queries is split into units of this many keys. (Not by the number of
// threads: that would change results.)
constexpr int64_t kFewTiles = 256;
constexpr int64_t kKeysOfPart = 1024;
// Keys are arranged for the matrix product once for all tiles if each is used at least this often.
constexpr int64_t kUsesToPrepareAll = 2;

// The keys as [feature, position], scaled, and (where queries aren't float) the values as float.
template <typename scalar_t>
class PreparedKeys {
 public:
  explicit PreparedKeys(const ForwardArguments<scalar_t>& a, bool wanted)
      : heads_(a.heads / a.heads_per_key_head),
        ld_((a.key_length + 15) / 16 * 16 + 16), // rows at a power of two would share cache lines
        features_(a.features),
        value_size_(std::is_same_v<scalar_t, float> ? 0 : a.key_length * a.value_features),
        keys_(wanted ? a.key_batches * heads_ * features_ * ld_ : 0),
        values_(wanted ? a.key_batches * heads_ * value_size_ : 0) {
    if (!wanted) {
      return;
    }
    constexpr int64_t rows_at_once = 64;
    const int64_t parts = (a.key_length + rows_at_once - 1) / rows_at_once;
    at::parallel_for(0, a.key_batches * heads_ * parts, 1, [&](int64_t first, int64_t last) {
      Buffer<float> scratch(rows_at_once * a.features);
      for (int64_t unit = first; unit < last; ++unit) {
        const int64_t begin = unit % parts * rows_at_once;
        const int64_t head = unit / parts % heads_;
        const int64_t batch = unit / parts / heads_;
        const int64_t rows = std::min(rows_at_once, a.key_length - begin);
        const Matrix tile = as_float(a.key.row(batch, head, begin), a.key.row_stride, rows, a.features, scratch.get());
        transpose(tile.data, tile.ld, rows, a.features, a.scale, keys_of(batch, head) + begin, ld_);
        if constexpr (!std::is_same_v<scalar_t, float>) {
          for (int64_t i = 0; i < rows; ++i) {
            at::vec::convert(
                a.value.row(batch, head, begin + i), values_of(batch, head) + (begin + i) * a.value_features,
                a.value_features);
          }
        }
      }
    });
  }

  float* keys_of(int64_t batch, int64_t head) const { return keys_.get() + (batch * heads_ + head) * features_ * ld_; }
  float* values_of(int64_t batch, int64_t head) const { return values_.get() + (batch * heads_ + head) * value_size_; }
  int64_t ld() const { return ld_; }

 private:
  int64_t heads_, ld_, features_, value_size_;
  Buffer<float> keys_, values_;
};

// What is known of rows of results after a part of their keys: the largest score, the sum of the weights relative to
// it, and the weighted sum of the values.
class PartialRows {
 public:
  PartialRows(int64_t rows, int64_t features)
      : features_(features), maxima_(rows), sums_(rows), values_(rows * features) {}

  void keep(int64_t row, float maximum, float sum, const float* values) const {
    maxima_.get()[row] = maximum;
    sums_.get()[row] = sum;
    std::copy_n(values, features_, values_.get() + row * features_);
  }

  // Joins rows first, first + step, ...; returns their largest score and sum, and writes their values.
  std::pair<float, float> join(int64_t first, int64_t step, int64_t parts, float* values) const {
    float maximum = -kInfinity;
    for (int64_t part = 0; part < parts; ++part) {
      const float other = maxima_.get()[first + part * step];
      maximum = other > maximum || std::isnan(other) ? other : maximum;
    }
    const float reference = maximum == -kInfinity ? 0.0f : maximum;
    float sum = 0.0f;
    std::fill_n(values, features_, 0.0f);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t row = first + part * step;
      const float weight = std::exp(maxima_.get()[row] - reference);
      sum += weight * sums_.get()[row];
      at::vec::map2<float>(
          [weight](const Vec& x, const Vec& y) { return at::vec::fmadd(Vec(weight), y, x); }, values, values,
          values_.get() + row * features_, features_);
    }
    return {maximum, sum};
  }

 private:
  int64_t features_;
  Buffer<float> maxima_, sums_, values_;
};

template <typename scalar_t, typename ScoreMod, typename MaskMod>
class Forward {
 public:
  Forward(const ForwardArguments<scalar_t>& arguments, const ScoreMod& score_mod, const MaskMod& mask_mod)
      : a_(arguments),
        score_mod_(score_mod),
        mask_mod_(mask_mod),
        tiles_(cut_into_tiles(a_.query_length, a_.query_block, kForwardQueryTile)) {}

  void run() const {
    const std::vector<Unit> units = cut_into_units();
    std::vector<int64_t> costs;
    costs.reserve(units.size());
    int64_t key_uses = 0;
    int64_t part_rows = 0;
    for (const Unit& unit : units) {
      key_uses += unit.tile->size > kFewQueries ? unit.keys : 0;
      costs.push_back(unit.tile->size * (unit.keys + 1));
      part_rows += unit.parts > 1 ? unit.tile->size : 0;
    }
    const int64_t key_heads = a_.heads / a_.heads_per_key_head;
    const bool prepare = key_uses >= kUsesToPrepareAll * a_.key_batches * key_heads * a_.key_length;
    const PreparedKeys<scalar_t> prepared(a_, prepare);
    const PartialRows partial(part_rows, a_.value_features);

    const int64_t threads = std::min<int64_t>(available_threads(), static_cast<int64_t>(units.size()));
    const std::vector<int64_t> cuts = cut_by_cost(costs, std::max<int64_t>(threads, 1));
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
      Scratch scratch(a_, !prepare);
      for (int64_t unit = cuts[first]; unit < cuts[last]; ++unit) {
        compute(units[unit], prepare ? &prepared : nullptr, partial, scratch);
      }
      at::native::cpublas::brgemm_release(/*is_vnni=*/false);
    });
    if (part_rows > 0) {
      for (const Unit& unit : units) {
        if (unit.parts > 1 && unit.part == 0) {
          join(unit, partial);
        }
      }
    }
  }

 private:
  // One of `parts` parts of the keys that a tile sees; `row`: its first one among PartialRows.
  struct Unit {
    const Tile* tile;
    int64_t batch, head, keys, part, parts, row;
  };

  struct Scratch {
    Buffer<float> scores, sums, maxima, accumulator, query, keys, values;
    Buffer<int32_t> query_positions, key_positions;
    std::vector<Run> runs;

    Scratch(const ForwardArguments<scalar_t>& a, bool prepares_itself)
        : scores(kForwardQueryTile * kForwardKeyTile),
          sums(kForwardQueryTile),
          maxima(kForwardQueryTile),
          accumulator(kForwardQueryTile * a.value_features),
          query(kForwardQueryTile * a.features),
          keys(prepares_itself ? (kForwardKeyTile + 1) * 2 * a.features : 0),
          values(kForwardKeyTile * a.value_features),
          query_positions(kForwardQueryTile),
          key_positions(kForwardKeyTile) {}
  };

  std::vector<Unit> cut_into_units() const {
    std::vector<Unit> units;
    const bool split = a_.batches * a_.heads * static_cast<int64_t>(tiles_.size()) < kFewTiles;
    int64_t row = 0;
    for (int64_t batch = 0; batch < a_.batches; ++batch) {
      for (int64_t head = 0; head < a_.heads; ++head) {
        for (const Tile& tile : tiles_) {
          const int64_t keys = (a_.partial.blocks(batch, head, tile.block) + a_.full.blocks(batch, head, tile.block)) *
                               std::min(a_.key_block, a_.key_length);
          const bool splits = split && tile.size <= kFewQueries && keys > kKeysOfPart;
          const int64_t parts = splits ? (keys + kKeysOfPart - 1) / kKeysOfPart : 1;
          for (int64_t part = 0; part < parts; ++part) {
            units.push_back({&tile, batch, head, keys / parts, part, parts, row});
            row += parts > 1 ? tile.size : 0;
          }
        }
      }
    }
    return units;
  }

  void compute(
      const Unit& unit, const PreparedKeys<scalar_t>* prepared, const PartialRows& partial, Scratch& scratch) const {
    const Tile& tile = *unit.tile;
    const int64_t batch = unit.batch;
    const int64_t head = unit.head;
    const int64_t key_head = head / a_.heads_per_key_head;
    const int64_t key_batch = a_.key_batches == 1 ? 0 : batch;
    scratch.runs.clear();
    append_runs(scratch.runs, a_.partial, true, batch, head, tile.block, a_.key_block, a_.key_length);
    append_runs(scratch.runs, a_.full, false, batch, head, tile.block, a_.key_block, a_.key_length);
    if (unit.parts > 1) {
      keep_positions(scratch.runs, unit.part * kKeysOfPart, kKeysOfPart);
    }

    const Matrix query = as_float(
        a_.query.row(batch, head, tile.begin), a_.query.row_stride, tile.size, a_.features, scratch.query.get());
    std::fill_n(scratch.maxima.get(), tile.size, -kInfinity);
    std::fill_n(scratch.sums.get(), tile.size, 0.0f);
    count_from(tile.begin, tile.size, scratch.query_positions.get());

    bool add = false;
    for (const Run& run : scratch.runs) {
      for (int64_t begin = run.begin; begin < run.end; begin += kForwardKeyTile) {
        const int64_t keys = std::min(kForwardKeyTile, run.end - begin);
        score(query, tile.size, key_batch, key_head, begin, keys, prepared, scratch);
        modify(batch, head, tile.size, begin, keys, run.masked, scratch);
        for (int64_t i = 0; i < tile.size; ++i) {
          soften(i, keys, add, scratch);
        }
        const Matrix value = values(key_batch, key_head, begin, keys, prepared, scratch);
        multiply(
            tile.size, a_.value_features, keys, scratch.scores.get(), keys, value.data, value.ld,
            scratch.accumulator.get(), a_.value_features, add);
        add = true;
      }
    }
    for (int64_t i = 0; i < tile.size; ++i) {
      float* row = scratch.accumulator.get() + i * a_.value_features;
      if (!add) {
        std::fill_n(row, a_.value_features, 0.0f);
      }
      if (unit.parts > 1) {
        partial.keep(unit.row + i, scratch.maxima.get()[i], scratch.sums.get()[i], row);
      } else {
        finish(batch, head, tile.begin + i, scratch.maxima.get()[i], scratch.sums.get()[i], row);
      }
    }
  }

  // The result of a tile whose keys were split.
  void join(const Unit& unit, const PartialRows& partial) const {
    const int64_t queries = unit.tile->size;
    Buffer<float> row(a_.value_features);
    for (int64_t i = 0; i < queries; ++i) {
      const auto [maximum, sum] = partial.join(unit.row + i, queries, unit.parts, row.get());
      finish(unit.batch, unit.head, unit.tile->begin + i, maximum, sum, row.get());
    }
  }

  void score(
      const Matrix& query, int64_t queries, int64_t key_batch, int64_t key_head, int64_t begin, int64_t keys,
      const PreparedKeys<scalar_t>* prepared, Scratch& scratch) const {
    float* scores = scratch.scores.get();
    if (prepared != nullptr) {
      multiply(
          queries, keys, a_.features, query.data, query.ld, prepared->keys_of(key_batch, key_head) + begin,
          prepared->ld(), scores, keys, false);
      return;
    }
    float* own = scratch.keys.get();
    const Matrix rows = as_float(a_.key.row(key_batch, key_head, begin), a_.key.row_stride, keys, a_.features, own);
    if (queries > kFewQueries) {
      float* arranged = own + kForwardKeyTile * a_.features;
      transpose(rows.data, rows.ld, keys, a_.features, a_.scale, arranged, keys);
      multiply(queries, keys, a_.features, query.data, query.ld, arranged, keys, scores, keys, false);
      return;
    }
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        scores[i * keys + j] = a_.scale * dot(query.data + i * query.ld, rows.data + j * rows.ld, a_.features);
      }
    }
  }

  Matrix values(
      int64_t key_batch, int64_t key_head, int64_t begin, int64_t keys, const PreparedKeys<scalar_t>* prepared,
      Scratch& scratch) const {
    if (!std::is_same_v<scalar_t, float> && prepared != nullptr) {
      return {prepared->values_of(key_batch, key_head) + begin * a_.value_features, a_.value_features};
    }
    return as_float(
        a_.value.row(key_batch, key_head, begin), a_.value.row_stride, keys, a_.value_features, scratch.values.get());
  }

  void modify(
      int64_t batch, int64_t head, int64_t queries, int64_t begin, int64_t keys, bool masked, Scratch& scratch) const {
    if (!is_given<ScoreMod> && !masked) {
      return;
    }
    float* scores = scratch.scores.get();
    const auto b = static_cast<int32_t>(batch);
    const auto h = static_cast<int32_t>(head);
    count_from(begin, keys, scratch.key_positions.get());
    if constexpr (is_given<ScoreMod>) {
      score_mod_(scores, scores, b, h, scratch.query_positions.get(), scratch.key_positions.get(), queries, keys);
    }
    if constexpr (is_given<MaskMod>) {
      if (masked) {
        mask_mod_(scores, b, h, scratch.query_positions.get(), scratch.key_positions.get(), queries, keys);
      }
    }
  }

  // Turns row i of the scores into weights relative to the row's largest score so far.
  void soften(int64_t i, int64_t keys, bool add, Scratch& scratch) const {
    float* row = scratch.scores.get() + i * keys;
    const float before = scratch.maxima.get()[i];
    const float largest =
        at::vec::reduce_all<float>([](const Vec& x, const Vec& y) { return at::vec::maximum(x, y); }, row, keys);
    const float maximum = largest > before || std::isnan(largest) ? largest : before;
    const float reference = maximum == -kInfinity ? 0.0f : maximum;
    Vec sums(0.0f);
    int64_t j = 0;
    for (; j + kLanes <= keys; j += kLanes) {
      const Vec weight = exponential(Vec::loadu(row + j) - Vec(reference));
      weight.store(row + j);
      sums = sums + weight;
    }
    if (j < keys) {
      const Vec weight = exponential(Vec::loadu(row + j, keys - j) - Vec(reference));
      weight.store(row + j, keys - j);
      sums = sums + Vec::set(Vec(0.0f), weight, keys - j);
    }
    const float sum = at::vec::vec_reduce_all<float>([](const Vec& x, const Vec& y) { return x + y; }, sums);
    const float correction = std::exp(before - reference);
    scratch.sums.get()[i] = scratch.sums.get()[i] * correction + sum;
    scratch.maxima.get()[i] = maximum;
    if (add && correction != 1.0f) {
      scale_row(scratch.accumulator.get() + i * a_.value_features, correction, a_.value_features);
    }
  }

  void finish(int64_t batch, int64_t head, int64_t position, float maximum, float sum, float* accumulator) const {
    scalar_t* out = a_.out.row(batch, head, position);
    if (sum == 0.0f) {
      std::fill_n(out, a_.value_features, scalar_t(0.0f));
    } else {
      scale_row(accumulator, 1.0f / sum, a_.value_features);
      at::vec::convert(accumulator, out, a_.value_features);
    }
    const int64_t row = (batch * a_.heads + head) * a_.query_length + position;
    if (a_.logsumexp != nullptr) {
      a_.logsumexp[row] = (maximum + std::log(sum)) / kLn2;
    }
    if (a_.max_scores != nullptr) {
      a_.max_scores[row] = maximum / kLn2;
    }
  }

  static float dot(const float* x, const float* y, int64_t size) {
    Vec sums(0.0f);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      sums = at::vec::fmadd(Vec::loadu(x + i), Vec::loadu(y + i), sums);
    }
    float sum = at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, sums);
    for (; i < size; ++i) {
      sum += x[i] * y[i];
    }
    return sum;
  }

  const ForwardArguments<scalar_t>& a_;
  const ScoreMod& score_mod_;
  const MaskMod& mask_mod_;
  const std::vector<Tile> tiles_;
};

template <typename scalar_t, typename ScoreMod, typename MaskMod>
void forward(const ForwardArguments<scalar_t>& arguments, const ScoreMod& score_mod, const MaskMod& mask_mod) {
  Forward<scalar_t, ScoreMod, MaskMod>(arguments, score_mod, mask_mod).run();
}

} // namespace
} // namespace flex
