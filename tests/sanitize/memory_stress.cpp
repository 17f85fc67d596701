// Many threads allocate on several streams, launch work on the memory and free it before that work ran. The memory is
// written without atomics: a sanitizer reports a block that was handed out again too early.
#include "stress.h"

#include "memory/caching_allocator.h"
#include "memory/caching_allocator_registry.h"
#include "stream/stream.h"
#include "stream/stream_pool.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

using neuron::LaunchSource;
using neuron::Stream;
namespace memory = neuron::memory;

namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 4000; // of each thread
constexpr size_t kHeld = 8;

void write_and_check(Stream& stream, void* ptr, size_t nbytes, int pattern) {
  auto* const bytes = static_cast<unsigned char*>(ptr);
  stream.submit([=] { std::memset(bytes, pattern, nbytes); }, LaunchSource{});
  stream.submit(
      [=] { stress::check(bytes[0] == pattern && bytes[nbytes - 1] == pattern, "nobody else writes into a block"); },
      LaunchSource{});
}

void work(int thread, const std::array<Stream*, 3>& streams) {
  std::mt19937 random(static_cast<unsigned>(thread));
  std::vector<c10::DataPtr> held;
  for (int round = 0; round < kRounds; ++round) {
    Stream& stream = *streams[random() % streams.size()];
    const size_t nbytes = random() % 50 == 0 ? size_t{1} << 21 : 1 + random() % 9000;
    c10::DataPtr block = memory::allocate_data_ptr(0, nbytes, stream);
    stress::check(memory::device_of(block.get()) == 0, "the block lies on its device");
    write_and_check(stream, block.get(), nbytes, static_cast<int>(random() % 256));
    switch (random() % 4) {
      case 0: { // used by a second stream when it is freed
        Stream& second = *streams[random() % streams.size()];
        second.wait_stream(stream);
        memory::record_stream(block, second);
        write_and_check(second, block.get(), nbytes, static_cast<int>(random() % 256));
        break;
      }
      case 1:
        held.push_back(std::move(block));
        break;
      default: // freed while the launches are pending
        break;
    }
    if (held.size() > kHeld) {
      held.erase(held.begin(), held.begin() + 1 + static_cast<long>(random() % kHeld));
    }
    if (round % 500 == 499) {
      memory::empty_cache();
    }
    if (round % 100 == 99) {
      stress::check(memory::memory_info(0).first <= memory::memory_info(0).second, "free is at most total");
      memory::device_stats(0);
    }
  }
}

} // namespace

int main() {
  stress::use_devices(1, size_t{256} << 20);
  const std::array<Stream*, 3> streams{&neuron::default_stream(0), &neuron::new_stream(0), &neuron::new_stream(0)};
  stress::in_threads(kThreads, [&](int thread) { work(thread, streams); });
  neuron::synchronize_device(0);
  const auto stats = memory::device_stats(0);
  stress::check(stats.allocated_bytes[0].current == 0, "everything was freed");
  memory::empty_cache();
  stress::check(memory::device_stats(0).reserved_bytes[0].current == 0, "everything was given back");
  neuron::stop_all_streams();
  return 0;
}
