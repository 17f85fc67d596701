// The blocks of one device: segments cut into blocks, free blocks by stream and size. All members need the heap's lock.
//
// A freed block goes first into the bin of its size class, whole, because training asks for the same sizes again; that
// path is a few dozen instructions. Bins are emptied, and neighbours merged, before a new segment is taken.
#pragma once

#include "memory/caching_allocator_config.h"
#include "memory/caching_allocator_sizes.h"
#include "memory/segment.h"
#include "memory/snapshot.h"
#include "memory/spin_lock.h"
#include "memory/statistics.h"
#include "stream/stream.h"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace neuron::memory {

class DeviceHeap;
struct StreamBlocks;

// Rarely needed parts of a block.
struct BlockExtra {
  std::vector<Stream*> other_streams; // those given to record_stream
  int awaited_streams = 0;            // of a kAwaiting block
  Context context;                    // where it was allocated, while history is recorded
};

struct Segment {
  void* start = nullptr;
  size_t bytes = 0;
  Context context;
};

struct Block {
  void* ptr = nullptr;
  size_t bytes = 0;
  size_t requested = 0;
  StreamBlocks* owner = nullptr;
  Block* next_in_bin = nullptr;
  uint64_t ready_after = 0;
  std::unique_ptr<BlockExtra> extra;
  int16_t bin = kNoSizeClass;
  Pool pool = Pool::kSmall;
  BlockState state = BlockState::kFree;
  bool split = false;    // has a neighbour in its segment
  bool oversize = false; // was above the split limit when it was handed out
  Segment* segment = nullptr;
  Block* previous = nullptr; // neighbours by address
  Block* next = nullptr;
};

struct BySizeThenAddress {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const noexcept {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->ptr < b->ptr;
  }
  bool operator()(const Block* a, size_t bytes) const noexcept { return a->bytes < bytes; }
};

// The blocks that belong to one stream.
struct StreamBlocks {
  StreamBlocks(DeviceHeap& heap, Stream& stream) : heap(&heap), stream(&stream) {}
  DeviceHeap* heap;
  Stream* stream;
  std::array<Block*, kSizeClassCount> bins{};
  std::array<size_t, kPoolCount> binned{}; // how many blocks of each pool are in bins
  std::array<std::set<Block*, BySizeThenAddress>, kPoolCount> free;
};

class DeviceHeap {
 public:
  DeviceHeap(c10::DeviceIndex device, size_t hbm_bytes, const AllocatorConfig& config);

  const c10::DeviceIndex device;
  SpinLock lock;
  Statistics statistics;
  AllocatorConfig config;
  History history;

  // ---- the fast path, in the header so that it is inlined -----------------------------------------------------------
  StreamBlocks& blocks_of(Stream& stream) {
    if (last_stream_ == &stream) [[likely]] {
      return *last_blocks_;
    }
    return find_blocks_of(stream);
  }
  Block* take_binned(StreamBlocks& blocks, int size_class) noexcept {
    Block* block = blocks.bins[size_class];
    if (block == nullptr) [[unlikely]] {
      return nullptr;
    }
    blocks.bins[size_class] = block->next_in_bin;
    --blocks.binned[static_cast<int>(block->pool)];
    if (block->split) {
      statistics.inactive_split.subtract(block->pool, 1);
      statistics.inactive_split_bytes.subtract(block->pool, static_cast<int64_t>(block->bytes));
    }
    return block;
  }
  void note_allocated(Block& block, size_t requested) noexcept {
    auto bytes = static_cast<int64_t>(block.bytes);
    block.state = BlockState::kLive;
    block.requested = requested;
    statistics.allocation.add(block.pool, 1);
    statistics.allocated_bytes.add(block.pool, bytes);
    statistics.active.add(block.pool, 1);
    statistics.active_bytes.add(block.pool, bytes);
    statistics.requested_bytes.add(block.pool, static_cast<int64_t>(requested));
    block.oversize = block.bytes >= config.max_split_bytes;
    if (block.oversize) [[unlikely]] {
      statistics.oversize_allocations.add(block.pool, 1);
    }
  }
  void note_inactive(Block& block) noexcept {
    statistics.active.subtract(block.pool, 1);
    statistics.active_bytes.subtract(block.pool, static_cast<int64_t>(block.bytes));
    statistics.requested_bytes.subtract(block.pool, static_cast<int64_t>(block.requested));
    if (block.oversize) [[unlikely]] {
      statistics.oversize_allocations.subtract(block.pool, 1);
    }
  }
  void note_freed(Block& block) noexcept {
    auto bytes = static_cast<int64_t>(block.bytes);
    statistics.allocation.subtract(block.pool, 1);
    statistics.allocated_bytes.subtract(block.pool, bytes);
    if (block.split) {
      statistics.inactive_split.add(block.pool, 1);
      statistics.inactive_split_bytes.add(block.pool, bytes);
    }
  }
  void put_back(Block& block) {
    if (block.bin != kNoSizeClass) [[likely]] {
      StreamBlocks& blocks = *block.owner;
      block.state = BlockState::kBinned;
      block.next_in_bin = blocks.bins[block.bin];
      blocks.bins[block.bin] = &block;
      ++blocks.binned[static_cast<int>(block.pool)];
      return;
    }
    merge_into_free(block);
  }

  // ---- the slow paths
  // ------------------------------------------------------------------------------------------------ A block of at
  // least the class's bytes from the free blocks or a new segment; null when the limit or the host refuse.
  Block* find(StreamBlocks& blocks, SizeClass size);
  // Keeps a freed block back while streams given to record_stream may still use it; false when none does.
  bool await_streams(Block& block);
  // Returns awaiting blocks whose streams have passed the point of the free.
  void collect_awaited();
  bool has_awaiting() const noexcept { return awaiting_count_ != 0; }
  // Gives whole free segments back whose last user is done, until `enough` bytes were released. Returns the bytes.
  size_t release_idle_segments(size_t enough = SIZE_MAX);

  void set_memory_fraction(double fraction) noexcept { fraction_ = fraction; }
  double memory_fraction() const noexcept { return fraction_; }
  size_t total_bytes() const noexcept { return total_bytes_; }
  size_t allowed_bytes() const noexcept;
  size_t largest_free_block() const;
  size_t awaiting_bytes() const noexcept {
    return static_cast<size_t>(statistics.allocated_bytes.current() - statistics.active_bytes.current());
  }
  void record(HistoryAction action, uintptr_t address, size_t size, c10::StreamId stream, const Context& context);
  std::vector<SegmentSnapshot> snapshot() const;
  void set_accessible(bool accessible) noexcept { addresses_.set_accessible(accessible); }

 private:
  StreamBlocks& find_blocks_of(Stream& stream);
  Block* take_free(StreamBlocks& blocks, Pool pool, SizeClass size);
  bool grow(StreamBlocks& blocks, Pool pool, size_t bytes);
  bool grow_by(StreamBlocks& blocks, Pool pool, size_t segment_bytes);
  void empty_bins(StreamBlocks& blocks, Pool pool);
  void merge_into_free(Block& block);
  void absorb(Block& block, Block& neighbour);
  Block* new_block();
  void recycle(Block* block) noexcept;

  const size_t total_bytes_;
  double fraction_ = 1.0;
  AddressSpace addresses_;
  Stream* last_stream_ = nullptr;
  StreamBlocks* last_blocks_ = nullptr;
  std::unordered_map<Stream*, std::unique_ptr<StreamBlocks>> blocks_by_stream_;
  std::unordered_map<Stream*, std::deque<std::pair<uint64_t, Block*>>> awaiting_;
  size_t awaiting_count_ = 0;
  std::deque<Block> block_storage_;
  Block* spare_blocks_ = nullptr;
  std::map<uintptr_t, Block*> first_blocks_; // of each segment, by address
};

} // namespace neuron::memory
