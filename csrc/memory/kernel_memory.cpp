#include "memory/kernel_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <utility>

namespace neuron::memory {

namespace {

thread_local KernelMemory* t_scope = nullptr;

c10::Allocator* g_next = nullptr; // the CPU allocator that was there before

// Prepared blocks are owned by the launch until its results are adopted, so a kernel that drops one frees nothing.
void delete_host_or_prepared(void* ptr) {
  if (device_of(ptr) < 0) {
    g_next->raw_deleter()(ptr);
  }
}

} // namespace

struct HostAllocatorHook final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    KernelMemory* const scope = t_scope;
    if (C10_LIKELY(scope == nullptr)) {
      return g_next->allocate(nbytes);
    }
    const int32_t ordinal = scope->next_ordinal_++;
    if (ordinal == 0 && scope->stream_ != nullptr && nbytes > 0) {
      scope->served_ = neuron::memory::allocate(scope->device_, nbytes, *scope->stream_);
      void* const ptr = scope->served_.ptr;
      return c10::DataPtr(ptr, ptr, &delete_host_or_prepared, c10::Device(c10::DeviceType::CPU));
    }
    while (scope->next_prepared_ < scope->count_ && scope->prepared_[scope->next_prepared_].ordinal < ordinal) {
      ++scope->next_prepared_;
    }
    if (scope->next_prepared_ < scope->count_) {
      PreparedBlock& block = scope->prepared_[scope->next_prepared_];
      if (block.ordinal == ordinal && block.nbytes == nbytes) {
        ++scope->next_prepared_;
        void* const ptr = block.allocation.ptr;
        return c10::DataPtr(ptr, ptr, &delete_host_or_prepared, c10::Device(c10::DeviceType::CPU));
      }
    }
    c10::DataPtr result = g_next->allocate(nbytes);
    if (scope->count_ == 0 && scope->seen_.size() < KernelMemory::kRemembered) {
      scope->seen_.push_back(result.get());
    }
    return result;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    // raw_allocate() inside a kernel may have been given a prepared block, whose deleter must not free it.
    return t_scope != nullptr ? &delete_host_or_prepared : g_next->raw_deleter();
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override { g_next->copy_data(dest, src, count); }
};

KernelMemory::KernelMemory(PreparedBlock* prepared, size_t count) noexcept
    : prepared_(prepared), count_(count), outer_(std::exchange(t_scope, this)) {}

KernelMemory::KernelMemory(c10::DeviceIndex device, Stream& stream) noexcept
    : prepared_(nullptr), count_(0), device_(device), stream_(&stream), outer_(std::exchange(t_scope, this)) {}

KernelMemory::~KernelMemory() {
  t_scope = outer_;
  if (served_.block != nullptr) {
    free(served_.block);
  }
}

int32_t KernelMemory::ordinal_of(const void* ptr) const noexcept {
  for (size_t i = seen_.size(); i-- > 0;) {
    if (seen_[i] == ptr) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

void install_host_allocator_hook() {
  if (g_next != nullptr) {
    return;
  }
  static auto* const hook = new HostAllocatorHook;
  g_next = c10::GetCPUAllocator();
  // Same priority as what is there would be refused only if that one was higher; 255 is the highest.
  c10::SetCPUAllocator(hook, 255);
}

} // namespace neuron::memory
