#include "memory/caching_allocator.h"

#include "device/config.h"
#include "memory/caching_allocator_registry.h"
#include "memory/guard_pages.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

namespace neuron::memory {

namespace {

std::string format_bytes(size_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text.setf(std::ios::fixed);
  if (bytes < 1024) {
    text << bytes << " bytes";
  } else if (bytes < size_t{1} << 20) {
    text << static_cast<double>(bytes) / 1024.0 << " KiB";
  } else if (bytes < size_t{1} << 30) {
    text << static_cast<double>(bytes) / 1048576.0 << " MiB";
  } else {
    text << static_cast<double>(bytes) / 1073741824.0 << " GiB";
  }
  return text.str();
}

// Needs the heap's lock.
std::string out_of_memory_message(const DeviceHeap& heap, size_t requested) {
  auto reserved = static_cast<size_t>(heap.statistics.reserved_bytes.current());
  auto allocated = static_cast<size_t>(heap.statistics.allocated_bytes.current());
  size_t allowed = heap.allowed_bytes();
  size_t awaiting = heap.awaiting_bytes();
  size_t cached = reserved - allocated;
  size_t largest = heap.largest_free_block();
  size_t beyond = allowed > reserved ? allowed - reserved : 0;

  std::ostringstream text;
  text << "Neuron out of memory. Tried to allocate " << format_bytes(requested)
       << ". neuron:" << static_cast<int>(heap.device) << " has a total capacity of "
       << format_bytes(heap.total_bytes()) << " of which " << format_bytes(beyond) << " is free";
  if (allowed < heap.total_bytes()) {
    text << " (" << format_bytes(allowed) << " allowed by set_per_process_memory_fraction)";
  }
  text << ". Of the reserved " << format_bytes(reserved) << ", " << format_bytes(allocated)
       << " is allocated by PyTorch, and " << format_bytes(cached) << " is reserved by PyTorch but unallocated";
  if (awaiting != 0) {
    text << "; " << format_bytes(awaiting) << " of the allocated memory is freed but still in use on another stream";
  }
  text << ". The largest free piece is " << format_bytes(std::max(largest, beyond)) << ".";
  if (cached + beyond >= requested) {
    text << " The free memory would suffice but is fragmented: " << format_bytes(cached + beyond)
         << " is free in total. Allocate the largest tensors first, keep shapes constant over iterations, or limit "
            "splitting with TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG=kMaxSplitSizeBytes=...; "
            "torch.neuron.memory_snapshot() shows the segments.";
  } else if (requested <= allowed) {
    text << " Use a smaller batch, activation checkpointing, a lower precision or more devices; "
            "torch.neuron.memory_summary() shows what is in use.";
  }
  if (beyond >= requested) {
    text << " The host refused the memory: see `ulimit -v` and vm.overcommit_memory.";
  }
  return text.str();
}

[[noreturn]] void throw_out_of_memory(DeviceHeap& heap, size_t requested, Stream& stream, const Context& context) {
  std::string message;
  size_t reserved = 0;
  size_t allocated = 0;
  size_t allowed = 0;
  {
    std::lock_guard guard(heap.lock);
    ++heap.statistics.num_ooms;
    message = out_of_memory_message(heap, requested);
    reserved = static_cast<size_t>(heap.statistics.reserved_bytes.current());
    allocated = static_cast<size_t>(heap.statistics.allocated_bytes.current());
    allowed = heap.allowed_bytes();
    if (history_keeps(HistoryAction::kOutOfMemory)) {
      heap.record(
          HistoryAction::kOutOfMemory, allowed > reserved ? allowed - reserved : 0, requested, stream.id(), context);
    }
  }
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(requested), allocated, reserved, c10::Device(c10::DeviceType::PrivateUse1, heap.device));
  notify_out_of_memory(heap.device, requested, reserved, allowed);
  TORCH_CHECK_WITH(OutOfMemoryError, false, message);
}

// Asking whether the calling thread profiles memory costs as much as all the rest of a free, so frees ask only in a
// process in which an allocation has been profiled.
std::atomic<bool> profiled_once{false};

[[gnu::noinline]] void tell_profiler(DeviceHeap& heap, void* ptr, int64_t change) {
  size_t allocated = 0;
  size_t reserved = 0;
  {
    std::lock_guard guard(heap.lock);
    allocated = static_cast<size_t>(heap.statistics.allocated_bytes.current());
    reserved = static_cast<size_t>(heap.statistics.reserved_bytes.current());
  }
  c10::reportMemoryUsageToProfiler(
      ptr, change, allocated, reserved, c10::Device(c10::DeviceType::PrivateUse1, heap.device));
}

// NaN in every float type, -1 in every signed integer type: use of memory before it was written shows.
void poison(const Block& block) {
  // Launches of the former user may still be queued; then the memory is not fresh yet.
  if (block.owner->stream->completed() >= block.ready_after) {
    DeviceAccess access;
    std::memset(block.ptr, 0xFF, block.bytes);
  }
}

[[gnu::noinline]] void note_history(DeviceHeap& heap, Block& block, Context context) {
  if (history_keeps(HistoryAction::kAlloc)) {
    heap.record(
        HistoryAction::kAlloc, reinterpret_cast<uintptr_t>(block.ptr), block.bytes, block.owner->stream->id(), context);
  }
  if (context != nullptr) {
    if (block.segment->context == nullptr) {
      block.segment->context = context;
    }
    block.extra = std::make_unique<BlockExtra>();
    block.extra->context = std::move(context);
  }
}

// One attempt; needs the heap's lock. The block is live when it returns.
inline Block* try_allocate(DeviceHeap& heap, Stream& stream, size_t nbytes, SizeClass size, const Context& context) {
  StreamBlocks& blocks = heap.blocks_of(stream);
  Block* block = size.index != kNoSizeClass ? heap.take_binned(blocks, size.index) : nullptr;
  if (block == nullptr) [[unlikely]] {
    block = heap.find(blocks, size);
    if (block == nullptr) {
      return nullptr;
    }
  }
  heap.note_allocated(*block, nbytes);
  if (history_recording()) [[unlikely]] {
    note_history(heap, *block, context);
  }
  return block;
}

// Gives cached memory back, waits for the device, and tries again; throws when that does not help.
[[gnu::noinline]] Block* allocate_after_release(
    DeviceHeap& heap, Stream& stream, size_t nbytes, SizeClass size, const Context& context) {
  {
    std::lock_guard guard(heap.lock);
    ++heap.statistics.num_alloc_retries;
    if (heap.release_idle_segments() != 0) {
      if (Block* block = try_allocate(heap, stream, nbytes, size, context)) {
        return block;
      }
    }
  }
  wait_for_device(heap.device);
  {
    std::lock_guard guard(heap.lock);
    ++heap.statistics.num_sync_all_streams;
    heap.collect_awaited();
    Block* block = try_allocate(heap, stream, nbytes, size, context);
    if (block == nullptr && heap.release_idle_segments() != 0) {
      block = try_allocate(heap, stream, nbytes, size, context);
    }
    if (block != nullptr) {
      return block;
    }
  }
  throw_out_of_memory(heap, nbytes, stream, context);
}

// The block carries history or was used on other streams.
[[gnu::noinline]] void free_with_extra(DeviceHeap& heap, Block& block) {
  Context context = context_for(ContextLevel::kAll);
  Stream& stream = *block.owner->stream;
  auto address = reinterpret_cast<uintptr_t>(block.ptr);
  std::unique_ptr<BlockExtra> dropped; // after the lock: a context may run code of its own when it goes
  std::lock_guard guard(heap.lock);
  heap.note_inactive(block);
  block.ready_after = stream.submitted();
  if (history_keeps(HistoryAction::kFreeRequested)) {
    heap.record(HistoryAction::kFreeRequested, address, block.bytes, stream.id(), context);
  }
  if (block.extra != nullptr && !block.extra->other_streams.empty() && heap.await_streams(block)) {
    return;
  }
  if (history_keeps(HistoryAction::kFreeCompleted)) {
    heap.record(HistoryAction::kFreeCompleted, address, block.bytes, stream.id(), context);
  }
  dropped = std::move(block.extra);
  heap.note_freed(block);
  heap.put_back(block);
}

void free_block(void* block) {
  free(static_cast<Block*>(block));
}

} // namespace

Allocation allocate(c10::DeviceIndex device, size_t nbytes, Stream& stream) {
  config::ensure_started();
  DeviceHeap& heap = heap_of(device);
  TORCH_CHECK_WITH(
      OutOfMemoryError, nbytes <= kMaxRequestBytes, "Neuron out of memory. Tried to allocate ", nbytes,
      " bytes, more than any device has.");
  if (power2_divisions_set.load(std::memory_order_relaxed)) [[unlikely]] {
    nbytes = round_by_power2_divisions(nbytes);
  }
  SizeClass size = size_class_of(nbytes);
  Context context = context_for(ContextLevel::kState);
  Block* block = nullptr;
  {
    std::lock_guard guard(heap.lock);
    block = try_allocate(heap, stream, nbytes, size, context);
  }
  if (block == nullptr) [[unlikely]] {
    block = allocate_after_release(heap, stream, nbytes, size, context);
  }
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    profiled_once.store(true, std::memory_order_relaxed);
    tell_profiler(heap, block->ptr, static_cast<int64_t>(block->bytes));
  }
  if (guard::enabled.load(std::memory_order_relaxed)) [[unlikely]] {
    poison(*block);
  }
  return {block->ptr, block};
}

void free(Block* block) noexcept {
  if (block == nullptr) {
    return;
  }
  DeviceHeap& heap = *block->owner->heap;
  // The caller still holds the block here, so that its address is not anybody else's yet.
  if (profiled_once.load(std::memory_order_relaxed) && c10::memoryProfilingEnabled()) [[unlikely]] {
    tell_profiler(heap, block->ptr, -static_cast<int64_t>(block->bytes));
  }
  if (block->extra != nullptr || history_recording()) [[unlikely]] {
    free_with_extra(heap, *block);
    return;
  }
  std::lock_guard guard(heap.lock);
  heap.note_inactive(*block);
  block->ready_after = block->owner->stream->submitted();
  heap.note_freed(*block);
  heap.put_back(*block);
}

c10::DataPtr wrap(const Allocation& allocation, c10::DeviceIndex device) {
  return {allocation.ptr, allocation.block, &free_block, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

c10::DataPtr allocate_data_ptr(c10::DeviceIndex device, size_t nbytes, Stream& stream) {
  return wrap(nbytes == 0 ? Allocation{} : allocate(device, nbytes, stream), device);
}

void record_stream(const c10::DataPtr& ptr, Stream& stream) {
  // Memory that came from elsewhere (DLPack, from_blob) is not ours to hold back.
  if (ptr.get_context() == nullptr || ptr.get_deleter() != &free_block) {
    return;
  }
  auto* block = static_cast<Block*>(ptr.get_context());
  if (block->owner->stream == &stream) {
    return;
  }
  std::lock_guard guard(block->owner->heap->lock);
  if (block->extra == nullptr) {
    block->extra = std::make_unique<BlockExtra>();
  }
  auto& streams = block->extra->other_streams;
  if (std::find(streams.begin(), streams.end(), &stream) == streams.end()) {
    streams.push_back(&stream);
  }
}

c10::DeleterFnPtr block_deleter() noexcept {
  return &free_block;
}

uint64_t ready_after(const Block* block) noexcept {
  return block == nullptr ? 0 : block->ready_after;
}

c10::DeviceIndex device_of(const void* ptr) noexcept {
  return device_of_address(ptr);
}

} // namespace neuron::memory
