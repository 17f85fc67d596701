// What the allocator holds (segments and their blocks) and, when recording is on, what it did: PyTorch's memory
// snapshot.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace neuron::memory {

using Context = std::shared_ptr<c10::GatheredContext>; // where in the user's program something happened
using GatherContext = Context (*)();

enum class HistoryAction : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kOutOfMemory,
  kSnapshot,
};
constexpr int kHistoryActionCount = 7;
// PyTorch's name of the action ("alloc", "free_requested", ...).
const char* name_of(HistoryAction action) noexcept;

struct HistoryEntry {
  HistoryAction action = HistoryAction::kAlloc;
  uintptr_t address = 0; // for kOutOfMemory: the bytes that were still free on the device
  size_t size = 0;
  c10::StreamId stream = 0;
  int64_t time_us = 0; // since the epoch
  Context context;
  std::string user_metadata;
};

// When to remember where something happened; each level includes the one before.
enum class ContextLevel : uint8_t { kNever, kState, kAlloc, kAll };

struct HistoryOptions {
  bool recording = false; // contexts are gathered, and entries kept when keep_entries is set
  bool keep_entries = false;
  ContextLevel contexts = ContextLevel::kNever;
  GatherContext gather = nullptr;
  size_t max_entries = SIZE_MAX;
  uint32_t skipped_actions = 0; // bit per HistoryAction
};

// The newest entries of one device, oldest first when read. Not synchronised: used under the allocator's lock.
class History {
 public:
  void configure(size_t max_entries, bool clear);
  void add(HistoryEntry entry);
  std::vector<HistoryEntry> entries() const;

 private:
  std::vector<HistoryEntry> ring_;
  size_t next_ = 0; // the oldest entry once the ring is full
  size_t max_entries_ = SIZE_MAX;
};

enum class BlockState : uint8_t {
  kFree,     // merged with its neighbours, in the pool's ordered set
  kBinned,   // free, kept under its size class for the next request of that class
  kLive,     // held by an allocation
  kAwaiting, // freed, but another stream may still use it
};

struct BlockSnapshot {
  uintptr_t address = 0;
  size_t size = 0;
  size_t requested = 0;
  BlockState state = BlockState::kFree;
  Context context;
};

struct SegmentSnapshot {
  c10::DeviceIndex device = 0;
  uintptr_t address = 0;
  size_t total_size = 0;
  size_t requested_size = 0;
  size_t allocated_size = 0; // held by allocations, as in torch.cuda's snapshot
  size_t active_size = 0;    // and those that await another stream
  c10::StreamId stream = 0;
  bool large = false;
  Context context; // where the segment was allocated
  std::vector<BlockSnapshot> blocks;
};

struct Snapshot {
  std::vector<SegmentSnapshot> segments;
  std::vector<std::vector<HistoryEntry>> device_histories; // by device index
};

// Of all devices. Records a kSnapshot entry in each history first. `entries` false leaves the histories out.
Snapshot take_snapshot(bool entries = true);

void configure_history(const HistoryOptions& options, bool clear);
size_t history_max_entries() noexcept;
// Attached to entries recorded by this thread from now on; empty for none.
void set_history_metadata(const std::string& metadata);
const std::string& history_metadata() noexcept;

namespace history_state {
extern std::atomic<bool> recording;
extern std::atomic<uint32_t> kept_actions; // bit per HistoryAction; 0 while no entries are kept
} // namespace history_state

inline bool history_recording() noexcept {
  return history_state::recording.load(std::memory_order_relaxed);
}
inline bool history_keeps(HistoryAction action) noexcept {
  return (history_state::kept_actions.load(std::memory_order_relaxed) >> static_cast<int>(action) & 1) != 0;
}
// Where the calling thread is, when that is wanted for things of this level. Never under a heap's lock: may run Python.
Context gather_context(ContextLevel level);
inline Context context_for(ContextLevel level) {
  return history_recording() ? gather_context(level) : nullptr;
}

} // namespace neuron::memory
