#include "memory/caching_allocator_registry.h"

#include "device/config.h"
#include "device/gil.h"
#include "memory/guard_pages.h"
#include "stream/stream_pool.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include <pthread.h>

namespace neuron::memory {

namespace {

std::array<std::atomic<DeviceHeap*>, kMaxDevices> heaps{};
std::mutex& heaps_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

struct Observers {
  std::mutex mutex;
  std::vector<OutOfMemoryObserver> list;
};
Observers& observers() {
  static auto* instance = new Observers;
  return *instance;
}

// A fork in the middle of an allocation on another thread would leave the child with a lock that nobody gives back.
void lock_all_heaps() {
  heaps_mutex().lock();
  for (auto& heap : heaps) {
    if (DeviceHeap* existing = heap.load(std::memory_order_acquire)) {
      existing->lock.lock();
    }
  }
}
void unlock_all_heaps() {
  for (auto& heap : heaps) {
    if (DeviceHeap* existing = heap.load(std::memory_order_acquire)) {
      existing->lock.unlock();
    }
  }
  heaps_mutex().unlock();
}
void after_fork_in_child() {
  for (auto& heap : heaps) {
    if (DeviceHeap* existing = heap.load(std::memory_order_acquire)) {
      existing->set_accessible(false); // the pages were wiped: reading zeros would be a silently wrong value
    }
  }
  unlock_all_heaps();
}

// While the library is loaded, so before those of device/config: preparing runs in reverse order, and the executors,
// which config waits for, need the locks that are taken here.
const int fork_handlers_failed = pthread_atfork(&lock_all_heaps, &unlock_all_heaps, &after_fork_in_child);

[[gnu::noinline]] DeviceHeap& make_heap(c10::DeviceIndex device) {
  config::check_device_index(device);
  AllocatorConfig allocator_config = read_allocator_config();
  std::lock_guard guard(heaps_mutex());
  TORCH_INTERNAL_ASSERT(fork_handlers_failed == 0, "pthread_atfork failed with error ", fork_handlers_failed);
  DeviceHeap* heap = heaps[device].load(std::memory_order_acquire);
  if (heap == nullptr) {
    heap = new DeviceHeap(device, config::get().hbm_bytes, allocator_config);
    heap->set_accessible(guard::accessible());
    heap->history.configure(history_max_entries(), true);
    heaps[device].store(heap, std::memory_order_release);
  }
  return *heap;
}

} // namespace

DeviceHeap* existing_heap(c10::DeviceIndex device) noexcept {
  return device < 0 ? nullptr : heaps[device].load(std::memory_order_acquire);
}

DeviceHeap& heap_of(c10::DeviceIndex device) {
  if (device >= 0) [[likely]] {
    if (DeviceHeap* heap = heaps[device].load(std::memory_order_acquire)) [[likely]] {
      return *heap;
    }
  }
  return make_heap(device);
}

void for_each_heap(const std::function<void(DeviceHeap&)>& visit) {
  for (auto& heap : heaps) {
    if (DeviceHeap* existing = heap.load(std::memory_order_acquire)) {
      visit(*existing);
    }
  }
}

void wait_for_device(c10::DeviceIndex device) {
  // An executor must not wait: for its own stream it would wait for ever. In a forked child nobody completes anything.
  if (on_executor_thread() || config::in_bad_fork()) {
    return;
  }
  without_gil([device] { for_each_stream(device, [](Stream& stream) { stream.wait(stream.submitted()); }); });
}

void add_out_of_memory_observer(OutOfMemoryObserver observer) {
  std::lock_guard guard(observers().mutex);
  observers().list.push_back(std::move(observer));
}

void notify_out_of_memory(c10::DeviceIndex device, size_t requested, size_t reserved, size_t allowed) {
  std::vector<OutOfMemoryObserver> callbacks;
  {
    std::lock_guard guard(observers().mutex);
    callbacks = observers().list;
  }
  for (const auto& observe : callbacks) {
    observe(device, requested, reserved, allowed);
  }
}

void empty_cache() {
  for_each_heap([](DeviceHeap& heap) {
    wait_for_device(heap.device); // launches may still use memory that their caller has let go of
    std::lock_guard guard(heap.lock);
    heap.collect_awaited();
    heap.release_idle_segments();
  });
}

void set_memory_fraction(c10::DeviceIndex device, double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "invalid memory fraction ", fraction, ": allowed are 0 to 1");
  DeviceHeap& heap = heap_of(device);
  std::lock_guard guard(heap.lock);
  heap.set_memory_fraction(fraction);
}

double memory_fraction(c10::DeviceIndex device) {
  DeviceHeap& heap = heap_of(device);
  std::lock_guard guard(heap.lock);
  return heap.memory_fraction();
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  config::check_device_index(device);
  DeviceHeap* existing = existing_heap(device);
  if (existing == nullptr) {
    return {config::get().hbm_bytes, config::get().hbm_bytes};
  }
  DeviceHeap& heap = *existing;
  std::lock_guard guard(heap.lock);
  return {heap.total_bytes() - static_cast<size_t>(heap.statistics.reserved_bytes.current()), heap.total_bytes()};
}

c10::CachingDeviceAllocator::DeviceStats device_stats(c10::DeviceIndex device) {
  config::check_device_index(device);
  DeviceHeap* heap = existing_heap(device);
  if (heap == nullptr) {
    return Statistics().to_device_stats(read_allocator_config().max_split_bytes);
  }
  std::lock_guard guard(heap->lock);
  heap->collect_awaited();
  return heap->statistics.to_device_stats(heap->config.max_split_bytes);
}

void reset_accumulated_stats(c10::DeviceIndex device) {
  config::check_device_index(device);
  if (DeviceHeap* heap = existing_heap(device)) {
    std::lock_guard guard(heap->lock);
    heap->statistics.reset_accumulated();
  }
}

void reset_peak_stats(c10::DeviceIndex device) {
  config::check_device_index(device);
  if (DeviceHeap* heap = existing_heap(device)) {
    std::lock_guard guard(heap->lock);
    heap->statistics.reset_peak();
  }
}

size_t largest_free_block(c10::DeviceIndex device) {
  DeviceHeap* heap = existing_heap(device);
  if (heap == nullptr) {
    return 0;
  }
  std::lock_guard guard(heap->lock);
  return heap->largest_free_block();
}

namespace {

// PyTorch's settings can change while the process runs (torch._C._accelerator_setAllocatorSettings).
void apply_allocator_settings(const std::string&) {
  AllocatorConfig changed = read_allocator_config();
  for_each_heap([&](DeviceHeap& heap) {
    std::lock_guard guard(heap.lock);
    heap.config = changed;
  });
}

const c10::CachingAllocator::DeviceConfigParserHookRegistry settings_hook(&apply_allocator_settings, {});

} // namespace

} // namespace neuron::memory
