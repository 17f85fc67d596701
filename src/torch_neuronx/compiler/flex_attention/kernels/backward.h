// The gradient of block-sparse attention. A unit of work is one tile of keys of one key head: scores are computed again
// from the queries that see these keys, tile by tile, so no buffer grows with queries times keys.
//
// All products have the form of multiply(), so that the gradients of keys and values are collected transposed:
//   scores = Q K'   dP = dO V'   dV' += dO' P   dK' += Q' dS   dQ += dS K
//
// Threads get consecutive units of nearly equal cost. The gradient of a query sums over units: a thread that starts in
// the middle of a key head has a buffer of its own for that head, and buffers are added up in the order of threads.
#pragma once

namespace flex {
namespace {

template <typename scalar_t>
struct BackwardArguments : Attention<scalar_t> {
  Tensor<const scalar_t> out, grad_out;
  const float* logsumexp;      // [batch, head, query], contiguous, base 2
  const float* grad_logsumexp; // the same, or null
  // Without data if nobody wants them. Gradients of keys and values have the batch of the queries.
  Tensor<scalar_t> grad_query, grad_key, grad_value;
  const int64_t* captured_sizes; // elements of each captured tensor that has a gradient
  int64_t captured_count;
};

constexpr int64_t kBackwardQueryTile = 128;
constexpr int64_t kBackwardKeyTile = 128;
// Gradients of captured tensors up to this size are added up in double precision after each unit.
constexpr int64_t kFewElements = 1 << 16;

// The gradients of captured tensors, as one thread collects them.
class CapturedGradients {
 public:
  CapturedGradients(const int64_t* sizes, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      sizes_.push_back(sizes[i]);
      const bool few = sizes[i] <= kFewElements;
      recent_.emplace_back(sizes[i]);
      total_.emplace_back(few ? sizes[i] : 0);
      std::fill_n(recent_.back().get(), sizes[i], 0.0f);
      std::fill_n(total_.back().get(), few ? sizes[i] : 0, 0.0);
      pointers_.push_back(recent_.back().get());
    }
  }

  float* const* pointers() const { return pointers_.data(); }

  void finish_unit() {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (double* total = total_[i].get()) {
        float* recent = recent_[i].get();
        for (int64_t j = 0; j < sizes_[i]; ++j) {
          total[j] += recent[j];
          recent[j] = 0.0f;
        }
      }
    }
  }

  double element(int64_t tensor, int64_t i) const {
    const double* total = total_[tensor].get();
    return total != nullptr ? total[i] : recent_[tensor].get()[i];
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<Buffer<float>> recent_;
  std::vector<Buffer<double>> total_;
  std::vector<float*> pointers_;
};

template <typename scalar_t, typename ScoreMod, typename MaskMod, typename JointMod>
class Backward {
 public:
  // The scores before the modification are kept only if its derivative reads them.
  Backward(
      const BackwardArguments<scalar_t>& arguments, const ScoreMod& score_mod, const MaskMod& mask_mod,
      const JointMod& joint_mod)
      : a_(arguments),
        score_mod_(score_mod),
        mask_mod_(mask_mod),
        joint_mod_(joint_mod),
        ld_((a_.query_length + 15) / 16 * 16 + 16), // rows at a power of two would share cache lines
        query_tiles_(cut_into_tiles(a_.query_length, a_.query_block, kBackwardQueryTile)),
        key_tiles_(cut_into_tiles(a_.key_length, a_.key_block, kBackwardKeyTile)),
        queries_(a_.batches * a_.heads * a_.features * ld_),
        grads_out_(a_.batches * a_.heads * a_.value_features * ld_),
        logsumexp_(a_.batches * a_.heads * a_.query_length),
        delta_(a_.batches * a_.heads * a_.query_length),
        grad_query_(kInPlace ? 0 : a_.batches * a_.heads * a_.query_length * a_.features) {}

  // Calls store_captured(i, j, gradient) for each element j of each captured tensor i that has a gradient.
  template <typename Store>
  void run(const Store& store_captured) {
    prepare();
    const std::vector<int64_t> costs = unit_costs();
    const auto units = static_cast<int64_t>(costs.size());
    const int64_t threads = std::max<int64_t>(std::min<int64_t>(available_threads(), units), 1);
    const std::vector<int64_t> cuts = cut_by_cost(costs, threads);
    const int64_t units_per_head = static_cast<int64_t>(key_tiles_.size());

    std::vector<CapturedGradients> captured;
    std::vector<Buffer<float>> shared; // of threads that start within a head
    std::vector<int64_t> shared_head;  // which one, or -1
    for (int64_t thread = 0; thread < threads; ++thread) {
      captured.emplace_back(a_.captured_sizes, a_.captured_count);
      const bool within = wants_grad_query() && cuts[thread] < cuts[thread + 1] && cuts[thread] % units_per_head != 0;
      shared.emplace_back(within ? a_.heads_per_key_head * a_.query_length * a_.features : 0);
      shared_head.push_back(within ? cuts[thread] / units_per_head : -1);
    }
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
      Scratch scratch(a_);
      for (int64_t thread = first; thread < last; ++thread) {
        if (shared_head[thread] >= 0) {
          std::fill_n(shared[thread].get(), a_.heads_per_key_head * a_.query_length * a_.features, 0.0f);
        }
        for (int64_t unit = cuts[thread]; unit < cuts[thread + 1]; ++unit) {
          const int64_t head = unit / units_per_head;
          float* own = shared_head[thread] == head ? shared[thread].get() : nullptr;
          compute(head, key_tiles_[unit % units_per_head], own, captured[thread].pointers(), scratch);
          captured[thread].finish_unit();
        }
      }
      at::native::cpublas::brgemm_release(/*is_vnni=*/false);
    });
    collect_grad_query(shared, shared_head);
    for (int64_t tensor = 0; tensor < a_.captured_count; ++tensor) {
      at::parallel_for(0, a_.captured_sizes[tensor], 4096, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          double sum = 0.0;
          for (const CapturedGradients& part : captured) {
            sum += part.element(tensor, i);
          }
          store_captured(tensor, i, sum);
        }
      });
    }
  }

 private:
  // A gradient of float queries is collected where it belongs, others in a buffer of float.
  static constexpr bool kInPlace = std::is_same_v<scalar_t, float>;

  struct Scratch {
    Buffer<float> scores, before, grads, query, grad_out;
    Buffer<float> keys, keys_transposed, values, values_transposed, grad_keys, grad_values;
    Buffer<int32_t> query_positions, key_positions;
    std::vector<Run> runs;

    explicit Scratch(const BackwardArguments<scalar_t>& a)
        : scores(kBackwardQueryTile * kBackwardKeyTile),
          before(is_given<JointMod> ? kBackwardQueryTile * kBackwardKeyTile : 0),
          grads(kBackwardQueryTile * kBackwardKeyTile),
          query(kBackwardQueryTile * a.features),
          grad_out(kBackwardQueryTile * a.value_features),
          keys(kBackwardKeyTile * a.features),
          keys_transposed(kBackwardKeyTile * a.features),
          values(kBackwardKeyTile * std::max(a.features, a.value_features)),
          values_transposed(kBackwardKeyTile * a.value_features),
          grad_keys(kBackwardKeyTile * a.features),
          grad_values(kBackwardKeyTile * a.value_features),
          query_positions(kBackwardQueryTile),
          key_positions(kBackwardKeyTile) {}
  };

  // Per row of queries: the transposed tensors, the natural logarithm of the sum, and what the softmax subtracts.
  void prepare() {
    const auto tiles = static_cast<int64_t>(query_tiles_.size());
    at::parallel_for(0, a_.batches * a_.heads * tiles, 1, [&](int64_t first, int64_t last) {
      Buffer<float> scratch(kBackwardQueryTile * std::max(a_.features, a_.value_features));
      Buffer<float> out_row(a_.value_features);
      for (int64_t unit = first; unit < last; ++unit) {
        const Tile& tile = query_tiles_[unit % tiles];
        const int64_t head_index = unit / tiles;
        const int64_t batch = head_index / a_.heads;
        const int64_t head = head_index % a_.heads;
        const Matrix query =
            as_float(a_.query.row(batch, head, tile.begin), a_.query.row_stride, tile.size, a_.features, scratch.get());
        transpose(
            query.data, query.ld, tile.size, a_.features, a_.scale,
            queries_.get() + head_index * a_.features * ld_ + tile.begin, ld_);
        const Matrix grad_out = as_float(
            a_.grad_out.row(batch, head, tile.begin), a_.grad_out.row_stride, tile.size, a_.value_features,
            scratch.get());
        transpose(
            grad_out.data, grad_out.ld, tile.size, a_.value_features, 1.0f,
            grads_out_.get() + head_index * a_.value_features * ld_ + tile.begin, ld_);
        for (int64_t i = 0; i < tile.size; ++i) {
          const int64_t row = head_index * a_.query_length + tile.begin + i;
          const Matrix out =
              as_float(a_.out.row(batch, head, tile.begin + i), a_.out.row_stride, 1, a_.value_features, out_row.get());
          float delta = at::vec::map2_reduce_all<float>(
              [](const Vec& x, const Vec& y) { return x * y; }, [](const Vec& x, const Vec& y) { return x + y; },
              out.data, grad_out.data + i * grad_out.ld, a_.value_features);
          if (a_.grad_logsumexp != nullptr) {
            delta -= a_.grad_logsumexp[row] / kLn2;
          }
          delta_.get()[row] = delta;
          // A row that sees no key gets weights of 0.
          const float logsumexp = a_.logsumexp[row];
          logsumexp_.get()[row] = logsumexp == -kInfinity ? kInfinity : logsumexp * kLn2;
          if (logsumexp == -kInfinity) {
            forget_row(head_index, tile.begin + i);
          }
          if (wants_grad_query()) {
            std::fill_n(grad_query_row(batch, head, tile.begin + i), a_.features, 0.0f);
          }
        }
      }
    });
  }

  // A row that sees no key adds nothing to the gradients of keys and values, not even 0 times NaN.
  void forget_row(int64_t head_index, int64_t position) const {
    for (int64_t feature = 0; feature < a_.features; ++feature) {
      queries_.get()[(head_index * a_.features + feature) * ld_ + position] = 0.0f;
    }
    for (int64_t feature = 0; feature < a_.value_features; ++feature) {
      grads_out_.get()[(head_index * a_.value_features + feature) * ld_ + position] = 0.0f;
    }
  }

  bool wants_grad_query() const { return a_.grad_query.data != nullptr; }

  float* grad_query_row(int64_t batch, int64_t head, int64_t position) const {
    if constexpr (kInPlace) {
      return a_.grad_query.row(batch, head, position);
    } else {
      return grad_query_.get() + ((batch * a_.heads + head) * a_.query_length + position) * a_.features;
    }
  }

  std::vector<int64_t> unit_costs() const {
    std::vector<int64_t> costs;
    const int64_t key_heads = a_.heads / a_.heads_per_key_head;
    costs.reserve(a_.batches * key_heads * key_tiles_.size());
    for (int64_t batch = 0; batch < a_.batches; ++batch) {
      for (int64_t key_head = 0; key_head < key_heads; ++key_head) {
        for (const Tile& tile : key_tiles_) {
          int64_t blocks = 0;
          for (int64_t i = 0; i < a_.heads_per_key_head; ++i) {
            const int64_t head = key_head * a_.heads_per_key_head + i;
            blocks += a_.partial.blocks(batch, head, tile.block) + a_.full.blocks(batch, head, tile.block);
          }
          costs.push_back(tile.size * (blocks * std::min(a_.query_block, a_.query_length) + 1));
        }
      }
    }
    return costs;
  }

  // The gradients of one tile of keys and values; adds to the gradient of the queries that see it.
  void compute(int64_t head_index, const Tile& tile, float* own_grad_query, float* const* captured, Scratch& scratch) {
    const int64_t key_heads = a_.heads / a_.heads_per_key_head;
    const int64_t batch = head_index / key_heads;
    const int64_t key_head = head_index % key_heads;
    prepare_keys(batch, key_head, tile, scratch);
    std::fill_n(scratch.grad_keys.get(), tile.size * a_.features, 0.0f);
    std::fill_n(scratch.grad_values.get(), tile.size * a_.value_features, 0.0f);

    for (int64_t i = 0; i < a_.heads_per_key_head; ++i) {
      const int64_t head = key_head * a_.heads_per_key_head + i;
      scratch.runs.clear();
      append_runs(scratch.runs, a_.partial, true, batch, head, tile.block, a_.query_block, a_.query_length);
      append_runs(scratch.runs, a_.full, false, batch, head, tile.block, a_.query_block, a_.query_length);
      for (const Run& run : scratch.runs) {
        for (int64_t begin = run.begin; begin < run.end; begin += kBackwardQueryTile) {
          const int64_t queries = std::min(kBackwardQueryTile, run.end - begin);
          float* grad_query = own_grad_query != nullptr ? own_grad_query + (i * a_.query_length + begin) * a_.features
                                                        : grad_query_row(batch, head, begin);
          const int64_t ld_grad_query = own_grad_query != nullptr || !kInPlace ? a_.features : a_.grad_query.row_stride;
          add_tile(batch, head, begin, queries, tile, run.masked, grad_query, ld_grad_query, captured, scratch);
        }
      }
    }
    store(a_.grad_key, batch, key_head, tile, scratch.grad_keys.get(), a_.features, scratch);
    store(a_.grad_value, batch, key_head, tile, scratch.grad_values.get(), a_.value_features, scratch);
  }

  void prepare_keys(int64_t batch, int64_t key_head, const Tile& tile, Scratch& scratch) const {
    const Matrix key = as_float(
        a_.key.row(batch, key_head, tile.begin), a_.key.row_stride, tile.size, a_.features, scratch.values.get());
    transpose(key.data, key.ld, tile.size, a_.features, a_.scale, scratch.keys_transposed.get(), tile.size);
    for (int64_t i = 0; i < tile.size; ++i) {
      at::vec::map<float>(
          [scale = a_.scale](Vec x) { return x * Vec(scale); }, scratch.keys.get() + i * a_.features,
          key.data + i * key.ld, a_.features);
    }
    const Matrix value = as_float(
        a_.value.row(batch, key_head, tile.begin), a_.value.row_stride, tile.size, a_.value_features,
        scratch.values.get());
    transpose(value.data, value.ld, tile.size, a_.value_features, 1.0f, scratch.values_transposed.get(), tile.size);
  }

  void add_tile(
      int64_t batch, int64_t head, int64_t begin, int64_t queries, const Tile& tile, bool masked, float* grad_query,
      int64_t ld_grad_query, float* const* captured, Scratch& scratch) const {
    const int64_t head_index = batch * a_.heads + head;
    const int64_t keys = tile.size;
    const Matrix query =
        as_float(a_.query.row(batch, head, begin), a_.query.row_stride, queries, a_.features, scratch.query.get());
    const Matrix grad_out = as_float(
        a_.grad_out.row(batch, head, begin), a_.grad_out.row_stride, queries, a_.value_features,
        scratch.grad_out.get());
    float* scores = scratch.scores.get();
    float* grads = scratch.grads.get();
    float* before = is_given<JointMod> ? scratch.before.get() : scores;
    multiply(
        queries, keys, a_.features, query.data, query.ld, scratch.keys_transposed.get(), keys, before, keys, false);
    multiply(
        queries, keys, a_.value_features, grad_out.data, grad_out.ld, scratch.values_transposed.get(), keys, grads,
        keys, false);

    const auto b = static_cast<int32_t>(batch);
    const auto h = static_cast<int32_t>(head);
    if (is_given<ScoreMod> || is_given<JointMod> || masked) {
      count_from(begin, queries, scratch.query_positions.get());
      count_from(tile.begin, keys, scratch.key_positions.get());
    }
    if constexpr (is_given<ScoreMod>) {
      score_mod_(before, scores, b, h, scratch.query_positions.get(), scratch.key_positions.get(), queries, keys);
    }
    if constexpr (is_given<MaskMod>) {
      if (masked) {
        mask_mod_(scores, b, h, scratch.query_positions.get(), scratch.key_positions.get(), queries, keys);
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = head_index * a_.query_length + begin + i;
      differentiate_softmax(scores + i * keys, grads + i * keys, logsumexp_.get()[row], delta_.get()[row], keys);
    }
    if constexpr (is_given<JointMod>) {
      joint_mod_(
          before, grads, b, h, scratch.query_positions.get(), scratch.key_positions.get(), queries, keys, captured);
      clear_unseen(scores, grads, queries * keys);
    }
    multiply(
        a_.value_features, keys, queries, grads_out_.get() + head_index * a_.value_features * ld_ + begin, ld_, scores,
        keys, scratch.grad_values.get(), keys, true);
    multiply(
        a_.features, keys, queries, queries_.get() + head_index * a_.features * ld_ + begin, ld_, grads, keys,
        scratch.grad_keys.get(), keys, true);
    if (wants_grad_query()) {
      multiply(
          queries, a_.features, keys, grads, keys, scratch.keys.get(), a_.features, grad_query, ld_grad_query, true);
    }
  }

  // A row of scores becomes weights, a row of the weights' gradients becomes the scores'.
  static void differentiate_softmax(float* scores, float* grads, float logsumexp, float delta, int64_t keys) {
    const auto step = [&](int64_t j, int64_t count) {
      const Vec weight = exponential(Vec::loadu(scores + j, count) - Vec(logsumexp));
      const Vec grad = weight * (Vec::loadu(grads + j, count) - Vec(delta));
      weight.store(scores + j, count);
      Vec::blendv(grad, Vec(0.0f), weight == Vec(0.0f)).store(grads + j, count);
    };
    int64_t j = 0;
    for (; j + kLanes <= keys; j += kLanes) {
      step(j, kLanes);
    }
    if (j < keys) {
      step(j, keys - j);
    }
  }

  // A modification's derivative may be infinite where the weight is 0.
  static void clear_unseen(const float* weights, float* grads, int64_t size) {
    at::vec::map2<float>(
        [](const Vec& weight, const Vec& grad) { return Vec::blendv(grad, Vec(0.0f), weight == Vec(0.0f)); }, grads,
        weights, grads, size);
  }

  // Stores a tile that was collected as [feature, position].
  static void store(
      const Tensor<scalar_t>& out, int64_t batch, int64_t head, const Tile& tile, const float* transposed,
      int64_t features, Scratch& scratch) {
    if (out.data == nullptr) {
      return;
    }
    float* rows = scratch.values.get();
    transpose(transposed, tile.size, features, tile.size, 1.0f, rows, features);
    for (int64_t i = 0; i < tile.size; ++i) {
      at::vec::convert(rows + i * features, out.row(batch, head, tile.begin + i), features);
    }
  }

  // Adds what threads collected in buffers of their own, and brings the sums to the gradient's type.
  void collect_grad_query(const std::vector<Buffer<float>>& shared, const std::vector<int64_t>& shared_head) const {
    const auto threads = static_cast<int64_t>(shared.size());
    const bool any_shared = std::any_of(shared_head.begin(), shared_head.end(), [](int64_t head) { return head >= 0; });
    if (!wants_grad_query() || (kInPlace && !any_shared)) {
      return;
    }
    at::parallel_for(0, a_.batches * a_.heads, 1, [&](int64_t first, int64_t last) {
      for (int64_t head_index = first; head_index < last; ++head_index) {
        const int64_t within = head_index % a_.heads_per_key_head;
        for (int64_t position = 0; position < a_.query_length; ++position) {
          const int64_t batch = head_index / a_.heads;
          const int64_t head = head_index % a_.heads;
          float* sum = grad_query_row(batch, head, position);
          for (int64_t thread = 0; thread < threads; ++thread) {
            if (shared_head[thread] == head_index / a_.heads_per_key_head) {
              const float* part = shared[thread].get() + (within * a_.query_length + position) * a_.features;
              at::vec::map2<float>([](const Vec& x, const Vec& y) { return x + y; }, sum, sum, part, a_.features);
            }
          }
          if constexpr (!kInPlace) {
            at::vec::convert(sum, a_.grad_query.row(batch, head, position), a_.features);
          }
        }
      }
    });
  }

  const BackwardArguments<scalar_t>& a_;
  const ScoreMod& score_mod_;
  const MaskMod& mask_mod_;
  const JointMod& joint_mod_;
  const int64_t ld_;
  const std::vector<Tile> query_tiles_, key_tiles_;
  // [batch, head, feature, query], scaled; the same of the gradient of the result
  Buffer<float> queries_, grads_out_;
  Buffer<float> logsumexp_, delta_, grad_query_;
};

template <typename scalar_t, typename ScoreMod, typename MaskMod, typename JointMod, typename Store>
void backward(
    const BackwardArguments<scalar_t>& arguments, const ScoreMod& score_mod, const MaskMod& mask_mod,
    const JointMod& joint_mod, const Store& store_captured) {
  Backward<scalar_t, ScoreMod, MaskMod, JointMod>(arguments, score_mod, mask_mod, joint_mod).run(store_captured);
}

} // namespace
} // namespace flex
