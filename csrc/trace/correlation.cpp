#include "trace/correlation.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace neuron::trace {

namespace {

constexpr uint32_t kMaxDepth = 64; // nested ids that are kept; deeper ones count as the deepest kept one

struct IdStack {
  uint32_t depth = 0;
  std::array<uint64_t, kMaxDepth> ids{};

  void push(uint64_t id) noexcept {
    if (depth < kMaxDepth) {
      ids[depth] = id;
    }
    ++depth;
  }
  void pop() noexcept { depth -= depth > 0 ? 1 : 0; }
  uint64_t top() const noexcept { return depth == 0 ? 0 : ids[std::min(depth, kMaxDepth) - 1]; }
};

struct ThreadIds {
  uint64_t session = 0;
  IdStack ops;
  IdStack annotations;
};

thread_local ThreadIds t_ids;

std::atomic<uint64_t> g_session{0}; // 0: none is running
std::atomic<uint64_t> g_session_count{0};

// The thread's ids in the running session, or nullptr when none is running.
ThreadIds* ids_of_session() noexcept {
  const uint64_t session = g_session.load(std::memory_order_relaxed);
  if (session == 0) {
    return nullptr;
  }
  ThreadIds& ids = t_ids;
  if (ids.session != session) {
    ids.session = session;
    ids.ops.depth = 0;
    ids.annotations.depth = 0;
  }
  return &ids;
}

} // namespace

uint64_t current_correlation() noexcept {
  const ThreadIds* ids = ids_of_session();
  return ids == nullptr ? 0 : make_correlation(ids->ops.top(), ids->annotations.top());
}

void begin_correlation_session() noexcept {
  g_session.store(g_session_count.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void end_correlation_session() noexcept {
  g_session.store(0, std::memory_order_relaxed);
}

void push_op(uint64_t id) noexcept {
  if (ThreadIds* ids = ids_of_session()) {
    ids->ops.push(id);
  }
}

void pop_op() noexcept {
  if (ThreadIds* ids = ids_of_session()) {
    ids->ops.pop();
  }
}

void push_annotation(uint64_t id) noexcept {
  if (ThreadIds* ids = ids_of_session()) {
    ids->annotations.push(id);
  }
}

void pop_annotation() noexcept {
  if (ThreadIds* ids = ids_of_session()) {
    ids->annotations.pop();
  }
}

} // namespace neuron::trace
