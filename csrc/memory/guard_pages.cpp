#include "memory/guard_pages.h"

#include "device/environment.h"
#include "memory/caching_allocator_registry.h"

#include <mutex>

namespace neuron::memory {

namespace {

std::mutex& scopes_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::atomic<int> open_scopes{0}; // changed under scopes_mutex

void protect_all(bool accessible) {
  for_each_heap([&](DeviceHeap& heap) {
    std::lock_guard guard(heap.lock);
    heap.set_accessible(accessible);
  });
}

} // namespace

namespace guard {

std::atomic<bool> enabled{false};

void open() noexcept {
  std::lock_guard lock(scopes_mutex());
  if (open_scopes++ == 0) {
    protect_all(true);
  }
}

void close() noexcept {
  std::lock_guard lock(scopes_mutex());
  if (--open_scopes == 0 && enabled.load(std::memory_order_relaxed)) {
    protect_all(false);
  }
}

void read_environment() {
  if (switch_is_on("TORCH_NEURONX_GUARD_MEMORY")) {
    enabled.store(true, std::memory_order_relaxed);
  }
}

bool accessible() noexcept {
  return !enabled.load() || open_scopes.load() != 0;
}

} // namespace guard

void set_guard_mode(bool wanted) {
  std::lock_guard lock(scopes_mutex());
  guard::enabled.store(wanted, std::memory_order_relaxed);
  if (open_scopes == 0) {
    protect_all(!wanted);
  }
}

} // namespace neuron::memory
