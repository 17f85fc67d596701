#include "memory/pinned.h"

#include "stream/stream_pool.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <pthread.h>

namespace neuron::memory {

namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr size_t kMinPinnedBytes = 512;
constexpr int kSizeLog2Count = 64;

struct PinnedBlock {
  char* ptr = nullptr;
  size_t bytes = 0;
  bool in_use = false;
  std::vector<Stream*> streams;                       // copies of the block were submitted to these
  std::vector<std::pair<Stream*, uint64_t>> awaiting; // after the free: launches that may still touch it
};

int64_t microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
}

size_t rounded(size_t nbytes) {
  if (nbytes > AcceleratorAllocatorConfig::pinned_max_round_threshold() ||
      nbytes > AcceleratorAllocatorConfig::pinned_max_cached_size()) {
    return nbytes;
  }
  return std::max(kMinPinnedBytes, std::bit_ceil(nbytes));
}

int size_log2(size_t bytes) {
  return 63 - std::countl_zero(static_cast<uint64_t>(bytes));
}

bool still_awaited(PinnedBlock& block) {
  std::erase_if(block.awaiting, [](const auto& use) { return use.first->completed() >= use.second; });
  return !block.awaiting.empty();
}

class PinnedHostAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data_ptr) const override { return data_ptr.get_deleter() == &release; }

  bool record_event(void* ptr, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  // Held during a fork: DataLoader forks while its pinning thread allocates, and the child must not inherit a lock that
  // nobody gives back.
  std::mutex& mutex() noexcept { return mutex_; }

  bool contains(const void* ptr) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    return block_holding(ptr) != nullptr;
  }

 private:
  static void release(void* context);
  void free(PinnedBlock& block);

  // All below need the mutex.
  PinnedBlock* block_holding(const void* ptr) noexcept;
  void collect_awaiting();
  void cache(PinnedBlock& block);
  void give_back(PinnedBlock* block);

  std::mutex mutex_;
  std::map<const char*, PinnedBlock*> blocks_; // by address
  std::vector<PinnedBlock*> cached_[kSizeLog2Count];
  std::vector<PinnedBlock*> awaiting_;

  at::Stat active_requests_;
  at::Stat active_bytes_;
  at::Stat allocations_;
  at::Stat allocated_bytes_;
  at::DurationStat alloc_time_;
  at::DurationStat free_time_;
};

extern const int host_fork_handlers_failed;

PinnedHostAllocator& host_allocator() {
  static auto* const allocator = new PinnedHostAllocator; // tensors may be freed while the process exits
  return *allocator;
}

void PinnedHostAllocator::release(void* context) {
  if (context != nullptr) {
    host_allocator().free(*static_cast<PinnedBlock*>(context));
  }
}

PinnedBlock* PinnedHostAllocator::block_holding(const void* ptr) noexcept {
  const auto* address = static_cast<const char*>(ptr);
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) {
    return nullptr;
  }
  PinnedBlock* block = std::prev(next)->second;
  return address < block->ptr + block->bytes ? block : nullptr;
}

c10::DataPtr PinnedHostAllocator::allocate(size_t nbytes) {
  const c10::Device kHost(c10::DeviceType::CPU);
  if (nbytes == 0) {
    return {nullptr, nullptr, &release, kHost};
  }
  TORCH_INTERNAL_ASSERT(host_fork_handlers_failed == 0, "pthread_atfork failed with error ", host_fork_handlers_failed);
  const size_t bytes = rounded(nbytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    collect_awaiting();
    auto& cached = cached_[size_log2(bytes)];
    auto found = std::find_if(cached.begin(), cached.end(), [&](PinnedBlock* block) { return block->bytes == bytes; });
    if (found != cached.end()) {
      PinnedBlock* block = *found;
      *found = cached.back();
      cached.pop_back();
      block->in_use = true;
      active_requests_.increase(1);
      active_bytes_.increase(bytes);
      return {block->ptr, block, &release, kHost};
    }
  }
  const auto start = std::chrono::steady_clock::now();
  auto* ptr = static_cast<char*>(c10::alloc_cpu(bytes));
  auto* block = new PinnedBlock{ptr, bytes, true, {}, {}};
  std::lock_guard<std::mutex> lock(mutex_);
  blocks_.emplace(ptr, block);
  alloc_time_.increase(microseconds_since(start));
  allocations_.increase(1);
  allocated_bytes_.increase(bytes);
  active_requests_.increase(1);
  active_bytes_.increase(bytes);
  return {block->ptr, block, &release, kHost};
}

void PinnedHostAllocator::free(PinnedBlock& block) {
  std::lock_guard<std::mutex> lock(mutex_);
  block.in_use = false;
  for (Stream* stream : block.streams) {
    block.awaiting.emplace_back(stream, stream->submitted());
  }
  block.streams.clear();
  if (still_awaited(block)) {
    awaiting_.push_back(&block);
  } else {
    cache(block);
  }
}

void PinnedHostAllocator::cache(PinnedBlock& block) {
  active_requests_.decrease(1);
  active_bytes_.decrease(block.bytes);
  if (block.bytes > AcceleratorAllocatorConfig::pinned_max_cached_size()) {
    give_back(&block);
  } else {
    cached_[size_log2(block.bytes)].push_back(&block);
  }
}

void PinnedHostAllocator::collect_awaiting() {
  std::erase_if(awaiting_, [this](PinnedBlock* block) {
    if (still_awaited(*block)) {
      return false;
    }
    cache(*block);
    return true;
  });
}

void PinnedHostAllocator::give_back(PinnedBlock* block) {
  const auto start = std::chrono::steady_clock::now();
  blocks_.erase(block->ptr);
  c10::free_cpu(block->ptr);
  free_time_.increase(microseconds_since(start));
  allocations_.decrease(1);
  allocated_bytes_.decrease(block->bytes);
  delete block;
}

bool PinnedHostAllocator::record_event(void* ptr, void* /*context*/, c10::Stream stream) {
  // A context of another allocator cannot be told from ours by looking at it; the address can.
  std::lock_guard<std::mutex> lock(mutex_);
  PinnedBlock* block = block_holding(ptr);
  if (block == nullptr || !block->in_use) {
    return false;
  }
  Stream& user = lookup_stream(stream);
  if (std::find(block->streams.begin(), block->streams.end(), &user) == block->streams.end()) {
    block->streams.push_back(&user);
  }
  return true;
}

void PinnedHostAllocator::empty_cache() {
  std::lock_guard<std::mutex> lock(mutex_);
  collect_awaiting();
  for (auto& cached : cached_) {
    for (PinnedBlock* block : cached) {
      give_back(block);
    }
    cached.clear();
  }
}

at::HostStats PinnedHostAllocator::get_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  collect_awaiting();
  at::HostStats stats;
  stats.active_requests = active_requests_;
  stats.active_bytes = active_bytes_;
  stats.allocations = allocations_;
  stats.allocated_bytes = allocated_bytes_;
  stats.host_alloc_time = alloc_time_;
  stats.host_free_time = free_time_;
  stats.num_host_alloc = allocations_.allocated;
  stats.num_host_free = allocations_.freed;
  return stats;
}

void PinnedHostAllocator::reset_accumulated_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (at::Stat* stat : {&active_requests_, &active_bytes_, &allocations_, &allocated_bytes_}) {
    stat->reset_accumulated();
  }
  alloc_time_.reset_accumulated();
  free_time_.reset_accumulated();
}

void PinnedHostAllocator::reset_peak_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (at::Stat* stat : {&active_requests_, &active_bytes_, &allocations_, &allocated_bytes_}) {
    stat->reset_peak();
  }
  alloc_time_.reset_peak();
  free_time_.reset_peak();
}

// While the library is loaded, so before those of device/config (see caching_allocator_registry.cpp).
const int host_fork_handlers_failed = pthread_atfork(
    [] { host_allocator().mutex().lock(); }, [] { host_allocator().mutex().unlock(); },
    [] { host_allocator().mutex().unlock(); });

const at::HostAllocatorRegistry<c10::DeviceType::PrivateUse1> host_registration(&host_allocator());

} // namespace

bool is_pinned(const void* ptr) noexcept {
  return host_allocator().contains(ptr);
}

at::HostAllocator& pinned_host_allocator() {
  return host_allocator();
}

} // namespace neuron::memory
