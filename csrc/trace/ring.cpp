#include "trace/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

namespace neuron::trace {

std::atomic<bool> g_enabled{false};

namespace {

constexpr size_t kMinCapacity = 64;
constexpr size_t kMaxCapacity = size_t{1} << 24; // 1.2 GB of slots
constexpr int kYieldsForUnfinished = 1000;       // how long a take waits for a writer that was preempted in a record

static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % sizeof(uint64_t) == 0);
static_assert(offsetof(Record, thread) == sizeof(Record) - sizeof(uint64_t));
using Words = std::array<uint64_t, sizeof(Record) / sizeof(uint64_t)>;

// The stamp of record i is 2i+1 while it is being written and 2i+2 when it is complete, so a reader that finds the same
// complete stamp before and after its copy has a whole record.
struct Slot {
  std::atomic<uint64_t> stamp{0};
  std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words{};
};

enum class ReadResult { kComplete, kUnfinished, kOverwritten };

uint32_t this_thread() noexcept {
  static std::atomic<uint32_t> count{0};
  thread_local const uint32_t id = count.fetch_add(1, std::memory_order_relaxed) + 1;
  return id;
}

} // namespace

class Ring {
 public:
  // Pages of the system: zero is the empty slot, and memory is taken only as far as records are written.
  explicit Ring(size_t capacity) : mask_(capacity - 1) {
    void* pages = mmap(
        nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
      throw std::bad_alloc();
    }
    slots_ = static_cast<Slot*>(pages);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Gives the memory back. A late writer finds an empty slot, which is older than any record.
  void release_memory() noexcept { madvise(slots_, capacity() * sizeof(Slot), MADV_DONTNEED); }

  size_t capacity() const noexcept { return mask_ + 1; }
  // Index of the next record to be appended.
  uint64_t head() const noexcept { return head_.load(std::memory_order_acquire); }

  void append(const Record& record, uint32_t thread) noexcept {
    const uint64_t index = head_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t writing = 2 * index + 1;
    Slot& slot = slots_[index & mask_];
    uint64_t seen = slot.stamp.load(std::memory_order_relaxed);
    // A writer a whole lap away holds the slot: give this record up, its reader counts it as dropped.
    if (seen % 2 == 1 || seen > writing ||
        !slot.stamp.compare_exchange_strong(seen, writing, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return;
    }
    auto words = std::bit_cast<Words>(record);
    words.back() = std::bit_cast<uint64_t>(std::array{thread, record.region});
    for (size_t i = 0; i < words.size(); ++i) {
      slot.words[i].store(words[i], std::memory_order_release); // whoever sees the word sees the "writing" stamp
    }
    slot.stamp.store(writing + 1, std::memory_order_release);
  }

  ReadResult read(uint64_t index, Record& record) const noexcept {
    const uint64_t complete = 2 * index + 2;
    const Slot& slot = slots_[index & mask_];
    const uint64_t stamp = slot.stamp.load(std::memory_order_acquire);
    if (stamp != complete) {
      return stamp < complete ? ReadResult::kUnfinished : ReadResult::kOverwritten;
    }
    Words words;
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = slot.words[i].load(std::memory_order_acquire);
    }
    if (slot.stamp.load(std::memory_order_relaxed) != complete) {
      return ReadResult::kOverwritten;
    }
    record = std::bit_cast<Record>(words);
    return ReadResult::kComplete;
  }

 private:
  Slot* slots_ = nullptr; // never unmapped: a writer may be in it at any time
  const size_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};
};

// The ring in use, those it replaced (a writer may still be in one, so they are kept), and the attached readers.
class Rings {
 public:
  static Rings& instance() {
    static Rings* rings = new Rings; // never destroyed: executor threads may append until the process ends
    return *rings;
  }

  Ring* current() const noexcept { return current_.load(std::memory_order_acquire); }

  void attach(Reader& reader, size_t capacity) {
    std::lock_guard lock(mutex_);
    capacity = std::bit_ceil(std::clamp(capacity, kMinCapacity, kMaxCapacity));
    Ring* ring = current();
    if (ring == nullptr || ring->capacity() < capacity) {
      ring = rings_.emplace_back(std::make_unique<Ring>(capacity)).get();
      for (Reader* other : readers_) {
        other->positions_.push_back({ring, 0});
      }
      current_.store(ring, std::memory_order_release);
    }
    readers_.push_back(&reader);
    reader.positions_.push_back({ring, ring->head()});
    g_enabled.store(true, std::memory_order_release);
  }

  void detach(Reader& reader) noexcept {
    std::lock_guard lock(mutex_);
    std::erase(readers_, &reader);
    if (readers_.empty()) {
      g_enabled.store(false, std::memory_order_release);
      for (const auto& ring : rings_) {
        ring->release_memory();
      }
    }
  }

  std::vector<Record> take(Reader& reader) {
    std::lock_guard lock(mutex_);
    std::vector<Record> records;
    for (Reader::Position& position : reader.positions_) {
      take_from(position, records, reader.dropped_);
    }
    std::stable_sort(
        records.begin(), records.end(), [](const Record& a, const Record& b) { return a.ended < b.ended; });
    convert_times(records, reader.clock_);
    return records;
  }

 private:
  static void convert_times(std::vector<Record>& records, TickConverter& clock) {
    if (records.empty()) {
      return;
    }
    const auto to_unix_ns = clock.to_unix_ns();
    for (Record& record : records) {
      for (int64_t* time : {&record.enqueued, &record.started, &record.ended}) {
        *time = *time == 0 ? 0 : to_unix_ns(*time);
      }
    }
  }

  static void take_from(Reader::Position& position, std::vector<Record>& records, uint64_t& dropped) {
    const Ring& ring = *position.ring;
    const uint64_t head = ring.head();
    if (head - position.next > ring.capacity()) {
      dropped += head - position.next - ring.capacity();
      position.next = head - ring.capacity();
    }
    records.reserve(records.size() + (head - position.next));
    for (; position.next < head; ++position.next) {
      Record record;
      ReadResult result = ring.read(position.next, record);
      for (int i = 0; result == ReadResult::kUnfinished && i < kYieldsForUnfinished; ++i) {
        std::this_thread::yield();
        result = ring.read(position.next, record);
      }
      if (result == ReadResult::kComplete) {
        records.push_back(record);
      } else {
        ++dropped;
      }
    }
  }

  std::mutex mutex_;
  std::atomic<Ring*> current_{nullptr};
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<Reader*> readers_;
};

void append(const Record& record) noexcept {
  // Null only when no reader was ever attached.
  if (Ring* ring = Rings::instance().current()) {
    ring->append(record, this_thread());
  }
}

Reader::Reader(size_t capacity) {
  Rings::instance().attach(*this, capacity);
}

Reader::~Reader() {
  Rings::instance().detach(*this);
}

std::vector<Record> Reader::take() {
  return Rings::instance().take(*this);
}

} // namespace neuron::trace
