#include "memory/caching_allocator_heap.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace neuron::memory {

namespace {

// What an allocation takes depends on its size alone, so a rest is cut off even where no request of its pool could use
// it; it is merged again when its neighbour comes back.
size_t min_rest_bytes(Pool pool) {
  return pool == Pool::kSmall ? kMinBlockBytes : kExactRounding;
}

int64_t now_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

} // namespace

DeviceHeap::DeviceHeap(c10::DeviceIndex device, size_t hbm_bytes, const AllocatorConfig& config)
    : device(device), config(config), total_bytes_(hbm_bytes), addresses_(device, hbm_bytes) {}

size_t DeviceHeap::allowed_bytes() const noexcept {
  return fraction_ >= 1.0 ? total_bytes_ : static_cast<size_t>(static_cast<double>(total_bytes_) * fraction_);
}

StreamBlocks& DeviceHeap::find_blocks_of(Stream& stream) {
  auto& entry = blocks_by_stream_[&stream];
  if (entry == nullptr) {
    entry = std::make_unique<StreamBlocks>(*this, stream);
  }
  last_stream_ = &stream;
  last_blocks_ = entry.get();
  return *entry;
}

// ---- finding a block
// -------------------------------------------------------------------------------------------------

Block* DeviceHeap::find(StreamBlocks& blocks, SizeClass size) {
  Pool pool = pool_of(size.bytes);
  if (awaiting_count_ != 0) {
    collect_awaited();
  }
  Block* block = take_free(blocks, pool, size);
  if (block == nullptr && blocks.binned[static_cast<int>(pool)] != 0) {
    empty_bins(blocks, pool);
    block = take_free(blocks, pool, size);
  }
  if (block == nullptr && grow(blocks, pool, size.bytes)) {
    block = take_free(blocks, pool, size);
  }
  return block;
}

Block* DeviceHeap::take_free(StreamBlocks& blocks, Pool pool, SizeClass size) {
  auto& free = blocks.free[static_cast<int>(pool)];
  auto found = free.lower_bound(size.bytes);
  if (found == free.end()) {
    return nullptr;
  }
  Block* block = *found;
  // Blocks above the split limit are kept for requests that nearly fill them.
  bool oversize = block->bytes >= config.max_split_bytes;
  if (oversize &&
      (size.bytes < config.max_split_bytes || block->bytes >= size.bytes + config.max_non_split_rounding_bytes)) {
    return nullptr;
  }
  free.erase(found);
  if (block->split) {
    statistics.inactive_split.subtract(pool, 1);
    statistics.inactive_split_bytes.subtract(pool, static_cast<int64_t>(block->bytes));
  }
  size_t rest = block->bytes - size.bytes;
  if (rest >= min_rest_bytes(pool) && !oversize) {
    Block* tail = new_block();
    tail->ptr = static_cast<char*>(block->ptr) + size.bytes;
    tail->bytes = rest;
    tail->owner = block->owner;
    tail->pool = pool;
    tail->ready_after = block->ready_after;
    tail->segment = block->segment;
    tail->previous = block;
    tail->next = block->next;
    tail->split = true;
    if (tail->next != nullptr) {
      tail->next->previous = tail;
    }
    block->next = tail;
    block->bytes = size.bytes;
    block->split = true;
    statistics.inactive_split.add(pool, 1);
    statistics.inactive_split_bytes.add(pool, static_cast<int64_t>(rest));
    free.insert(tail);
  }
  block->bin = static_cast<int16_t>(size.index);
  return block;
}

bool DeviceHeap::grow(StreamBlocks& blocks, Pool pool, size_t bytes) {
  size_t exact = whole_segments(bytes);
  size_t usual = exact;
  if (pool == Pool::kSmall) {
    usual = std::max(exact, config.small_segment_bytes);
  } else if (bytes < config.min_exact_segment_bytes) {
    usual = std::max(exact, config.large_segment_bytes);
  }
  if (config.garbage_collection_threshold > 0) {
    auto threshold = static_cast<size_t>(static_cast<double>(allowed_bytes()) * config.garbage_collection_threshold);
    size_t wanted = static_cast<size_t>(statistics.reserved_bytes.current()) + usual;
    if (wanted > threshold) {
      release_idle_segments(wanted - threshold);
    }
  }
  // Close to the limit, a segment for this request alone may still fit.
  return grow_by(blocks, pool, usual) || (usual != exact && grow_by(blocks, pool, exact));
}

bool DeviceHeap::grow_by(StreamBlocks& blocks, Pool pool, size_t segment_bytes) {
  auto reserved = static_cast<size_t>(statistics.reserved_bytes.current());
  if (segment_bytes > allowed_bytes() || reserved > allowed_bytes() - segment_bytes) {
    return false;
  }
  void* start = addresses_.map(segment_bytes, /*huge_pages=*/pool == Pool::kLarge);
  if (start == nullptr) {
    return false;
  }
  Block* block = new_block();
  block->ptr = start;
  block->bytes = segment_bytes;
  block->owner = &blocks;
  block->pool = pool;
  block->segment = new Segment{start, segment_bytes, nullptr};
  first_blocks_.emplace(reinterpret_cast<uintptr_t>(start), block);
  blocks.free[static_cast<int>(pool)].insert(block);
  statistics.segment.add(pool, 1);
  statistics.reserved_bytes.add(pool, static_cast<int64_t>(segment_bytes));
  if (segment_bytes >= config.max_split_bytes) {
    statistics.oversize_segments.add(pool, 1);
  }
  ++statistics.num_device_alloc;
  if (history_keeps(HistoryAction::kSegmentAlloc)) {
    record(
        HistoryAction::kSegmentAlloc, reinterpret_cast<uintptr_t>(start), segment_bytes, blocks.stream->id(), nullptr);
  }
  return true;
}

// ---- taking blocks back
// ----------------------------------------------------------------------------------------------

void DeviceHeap::empty_bins(StreamBlocks& blocks, Pool pool) {
  int first = pool == Pool::kSmall ? 0 : size_class_of(kSmallPoolMaxBytes).index + 1;
  int last = pool == Pool::kSmall ? size_class_of(kSmallPoolMaxBytes).index + 1 : kSizeClassCount;
  for (int bin = first; bin < last; ++bin) {
    Block* block = std::exchange(blocks.bins[bin], nullptr);
    while (block != nullptr) {
      // A neighbour that is still in a bin is merged when its own turn comes.
      Block* next = block->next_in_bin;
      merge_into_free(*block);
      block = next;
    }
  }
  blocks.binned[static_cast<int>(pool)] = 0;
}

void DeviceHeap::absorb(Block& block, Block& neighbour) {
  block.owner->free[static_cast<int>(block.pool)].erase(&neighbour);
  if (block.previous == &neighbour) {
    block.ptr = neighbour.ptr;
    block.previous = neighbour.previous;
    if (block.previous != nullptr) {
      block.previous->next = &block;
    } else {
      first_blocks_[reinterpret_cast<uintptr_t>(block.segment->start)] = &block;
    }
  } else {
    block.next = neighbour.next;
    if (block.next != nullptr) {
      block.next->previous = &block;
    }
  }
  block.bytes += neighbour.bytes;
  block.ready_after = std::max(block.ready_after, neighbour.ready_after);
  statistics.inactive_split.subtract(block.pool, 1);
  recycle(&neighbour);
}

void DeviceHeap::merge_into_free(Block& block) {
  if (block.previous != nullptr && block.previous->state == BlockState::kFree) {
    absorb(block, *block.previous);
  }
  if (block.next != nullptr && block.next->state == BlockState::kFree) {
    absorb(block, *block.next);
  }
  if (block.split && block.previous == nullptr && block.next == nullptr) {
    block.split = false;
    statistics.inactive_split.subtract(block.pool, 1);
    statistics.inactive_split_bytes.subtract(block.pool, static_cast<int64_t>(block.bytes));
  }
  block.state = BlockState::kFree;
  block.bin = kNoSizeClass;
  block.owner->free[static_cast<int>(block.pool)].insert(&block);
}

bool DeviceHeap::await_streams(Block& block) {
  BlockExtra& extra = *block.extra;
  for (Stream* stream : extra.other_streams) {
    uint64_t seq = stream->submitted();
    if (stream != block.owner->stream && stream->completed() < seq) {
      awaiting_[stream].emplace_back(seq, &block);
      ++extra.awaited_streams;
    }
  }
  extra.other_streams.clear();
  if (extra.awaited_streams == 0) {
    return false;
  }
  block.state = BlockState::kAwaiting;
  ++awaiting_count_;
  return true;
}

void DeviceHeap::collect_awaited() {
  for (auto it = awaiting_.begin(); it != awaiting_.end();) {
    auto& [stream, queue] = *it;
    uint64_t completed = stream->completed();
    while (!queue.empty() && queue.front().first <= completed) {
      Block& block = *queue.front().second;
      queue.pop_front();
      if (--block.extra->awaited_streams == 0) {
        if (history_keeps(HistoryAction::kFreeCompleted)) {
          record(
              HistoryAction::kFreeCompleted, reinterpret_cast<uintptr_t>(block.ptr), block.bytes,
              block.owner->stream->id(), nullptr);
        }
        block.extra.reset();
        --awaiting_count_;
        note_freed(block);
        put_back(block);
      }
    }
    it = queue.empty() ? awaiting_.erase(it) : std::next(it);
  }
}

size_t DeviceHeap::release_idle_segments(size_t enough) {
  size_t released = 0;
  for (auto& [stream, blocks] : blocks_by_stream_) {
    for (Pool pool : {Pool::kLarge, Pool::kSmall}) {
      if (released >= enough) {
        return released;
      }
      empty_bins(*blocks, pool);
      auto& free = blocks->free[static_cast<int>(pool)];
      uint64_t completed = stream->completed();
      for (auto it = free.begin(); it != free.end() && released < enough;) {
        Block* block = *it;
        bool whole = block->previous == nullptr && block->next == nullptr;
        if (!whole || block->ready_after > completed) {
          ++it;
          continue;
        }
        it = free.erase(it);
        released += block->bytes;
        statistics.segment.subtract(pool, 1);
        statistics.reserved_bytes.subtract(pool, static_cast<int64_t>(block->bytes));
        if (block->bytes >= config.max_split_bytes) {
          statistics.oversize_segments.subtract(pool, 1);
        }
        ++statistics.num_device_free;
        if (history_keeps(HistoryAction::kSegmentFree)) {
          record(
              HistoryAction::kSegmentFree, reinterpret_cast<uintptr_t>(block->ptr), block->bytes, stream->id(),
              nullptr);
        }
        first_blocks_.erase(reinterpret_cast<uintptr_t>(block->ptr));
        addresses_.unmap(block->ptr, block->bytes);
        delete block->segment;
        recycle(block);
      }
    }
  }
  return released;
}

// ---- blocks
// ----------------------------------------------------------------------------------------------------------

Block* DeviceHeap::new_block() {
  if (spare_blocks_ == nullptr) {
    return &block_storage_.emplace_back();
  }
  Block* block = std::exchange(spare_blocks_, spare_blocks_->next_in_bin);
  *block = Block();
  return block;
}

void DeviceHeap::recycle(Block* block) noexcept {
  block->extra.reset();
  block->next_in_bin = spare_blocks_;
  spare_blocks_ = block;
}

size_t DeviceHeap::largest_free_block() const {
  size_t largest = 0;
  for (const auto& [start, first] : first_blocks_) {
    for (const Block* block = first; block != nullptr; block = block->next) {
      if (block->state == BlockState::kFree || block->state == BlockState::kBinned) {
        largest = std::max(largest, block->bytes);
      }
    }
  }
  return largest;
}

void DeviceHeap::record(
    HistoryAction action, uintptr_t address, size_t size, c10::StreamId stream, const Context& context) {
  history.add({action, address, size, stream, now_us(), context, history_metadata()});
}

std::vector<SegmentSnapshot> DeviceHeap::snapshot() const {
  std::vector<SegmentSnapshot> result;
  result.reserve(first_blocks_.size());
  for (const auto& [start, first] : first_blocks_) {
    SegmentSnapshot& segment = result.emplace_back();
    segment.device = device;
    segment.address = start;
    segment.total_size = first->segment->bytes;
    segment.stream = first->owner->stream->id();
    segment.large = first->pool == Pool::kLarge;
    segment.context = first->segment->context;
    for (const Block* block = first; block != nullptr; block = block->next) {
      bool live = block->state == BlockState::kLive;
      bool awaiting = block->state == BlockState::kAwaiting;
      segment.blocks.push_back(
          {reinterpret_cast<uintptr_t>(block->ptr), block->bytes, live || awaiting ? block->requested : 0, block->state,
           block->extra != nullptr ? block->extra->context : nullptr});
      segment.allocated_size += live ? block->bytes : 0;
      segment.active_size += live || awaiting ? block->bytes : 0;
      segment.requested_size += live || awaiting ? block->requested : 0;
    }
  }
  return result;
}

} // namespace neuron::memory
