// Writers, readers that come and go, and small rings that overflow: no record is torn, and every loss is counted.
#include "stress.h"
#include "trace/ring.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

using neuron::trace::append;
using neuron::trace::Reader;
using neuron::trace::Record;

namespace {

constexpr int kWriters = 4;
constexpr uint64_t kRecords = 40'000; // of each writer

// Every field is made from the same number, so that a torn record shows.
Record record_of(uint64_t writer, uint64_t index) {
  const uint64_t number = writer << 32 | index;
  Record record;
  record.signature = number;
  record.correlation = ~number;
  record.enqueued = record.started = record.ended = static_cast<int64_t>(number);
  record.device = static_cast<int16_t>(writer);
  return record;
}

uint64_t count_whole(const std::vector<Record>& records) {
  for (const Record& record : records) {
    stress::check(record.correlation == ~record.signature, "correlation belongs to the record");
    // Turned into nanoseconds, all in the same way.
    stress::check(record.enqueued == record.started && record.started == record.ended, "times belong to the record");
    stress::check(static_cast<uint64_t>(record.device) == record.signature >> 32, "device belongs to the record");
  }
  return records.size();
}

} // namespace

int main() {
  constexpr uint64_t kAll = kWriters * kRecords;
  {
    Reader large(kAll), small(64);
    uint64_t taken_small = 0;
    std::atomic<bool> stop{false};
    std::thread taker([&] {
      while (!stop.load()) {
        taken_small += count_whole(small.take());
      }
    });
    std::thread comer([&] {
      for (size_t capacity = 128; capacity <= 16 * kAll; capacity *= 2) { // larger rings replace the one in use
        Reader reader(capacity);
        std::this_thread::yield();
        count_whole(reader.take());
      }
    });
    stress::in_threads(kWriters, [](int writer) {
      for (uint64_t i = 0; i < kRecords; ++i) {
        append(record_of(static_cast<uint64_t>(writer), i));
      }
    });
    comer.join();
    stop.store(true);
    taker.join();
    taken_small += count_whole(small.take());
    const uint64_t taken_large = count_whole(large.take());
    stress::check(taken_small + small.dropped() == kAll, "the small reader counts its losses");
    stress::check(taken_large + large.dropped() == kAll, "the large reader counts its losses");
  }
  stress::check(!neuron::trace::enabled(), "the trace is off without a reader");
  return 0;
}
