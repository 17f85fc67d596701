#include "memory/snapshot.h"

#include "memory/caching_allocator_registry.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

namespace neuron::memory {

namespace history_state {
std::atomic<bool> recording{false};
std::atomic<uint32_t> kept_actions{0};
} // namespace history_state

namespace {
thread_local std::string metadata_of_thread;
std::atomic<ContextLevel> context_level{ContextLevel::kNever};
std::atomic<GatherContext> gatherer{nullptr};
std::atomic<size_t> max_entries{SIZE_MAX};
} // namespace

const char* name_of(HistoryAction action) noexcept {
  static constexpr std::array<const char*, kHistoryActionCount> kNames = {
      "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"};
  return kNames[static_cast<size_t>(action)];
}

void History::configure(size_t max_entries, bool clear) {
  std::vector<HistoryEntry> kept;
  if (!clear) {
    kept = entries();
    if (kept.size() > max_entries) {
      kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(max_entries));
    }
  }
  ring_ = std::move(kept);
  next_ = 0;
  max_entries_ = max_entries;
}

void History::add(HistoryEntry entry) {
  if (ring_.size() < max_entries_) {
    ring_.push_back(std::move(entry));
    return;
  }
  if (ring_.empty()) {
    return;
  }
  ring_[next_] = std::move(entry);
  next_ = (next_ + 1) % ring_.size();
}

std::vector<HistoryEntry> History::entries() const {
  std::vector<HistoryEntry> result;
  result.reserve(ring_.size());
  result.insert(result.end(), ring_.begin() + static_cast<ptrdiff_t>(next_), ring_.end());
  result.insert(result.end(), ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(next_));
  return result;
}

Context gather_context(ContextLevel level) {
  if (context_level.load(std::memory_order_relaxed) < level) {
    return nullptr;
  }
  GatherContext gather = gatherer.load(std::memory_order_acquire);
  return gather == nullptr ? nullptr : gather();
}

size_t history_max_entries() noexcept {
  return max_entries.load(std::memory_order_relaxed);
}

void configure_history(const HistoryOptions& options, bool clear) {
  uint32_t actions = 0;
  if (options.recording && options.keep_entries) {
    actions = ((1U << kHistoryActionCount) - 1) & ~options.skipped_actions;
  }
  gatherer.store(options.gather, std::memory_order_release);
  context_level.store(options.recording ? options.contexts : ContextLevel::kNever, std::memory_order_relaxed);
  max_entries.store(options.max_entries, std::memory_order_relaxed);
  history_state::kept_actions.store(actions, std::memory_order_relaxed);
  for_each_heap([&](DeviceHeap& heap) {
    std::lock_guard guard(heap.lock);
    heap.history.configure(options.max_entries, clear || !options.recording);
  });
  history_state::recording.store(options.recording, std::memory_order_release);
}

Snapshot take_snapshot(bool entries) {
  Snapshot result;
  Context context = context_for(ContextLevel::kState);
  for_each_heap([&](DeviceHeap& heap) {
    std::lock_guard guard(heap.lock);
    heap.collect_awaited();
    if (history_keeps(HistoryAction::kSnapshot)) {
      heap.record(HistoryAction::kSnapshot, 0, 0, 0, context);
    }
    for (SegmentSnapshot& segment : heap.snapshot()) {
      result.segments.push_back(std::move(segment));
    }
    result.device_histories.resize(static_cast<size_t>(heap.device) + 1);
    if (entries) {
      result.device_histories[heap.device] = heap.history.entries();
    }
  });
  return result;
}

void set_history_metadata(const std::string& metadata) {
  metadata_of_thread = metadata;
}

const std::string& history_metadata() noexcept {
  return metadata_of_thread;
}

} // namespace neuron::memory
