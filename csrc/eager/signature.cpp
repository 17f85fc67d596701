#include "eager/signature.h"

#include "eager/run_time.h"
#include "memory/storage.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace neuron::eager {

namespace {

// What stands in front of each argument in a key.
enum Tag : uint64_t {
  kTensor = 1,
  kUndefined,
  kNone,
  kInt,
  kDouble,
  kComplex,
  kBool,
  kString,
  kDevice,
  kList,
  kGenerator,
  kFree,
  kOverlap,
};

constexpr uint64_t tagged(Tag tag, uint64_t value = 0) {
  return (value << 8) | tag;
}

[[noreturn]] void raise_mixed_devices(const c10::TensorImpl& first, const c10::TensorImpl& second) {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ", first.device(), " and ",
      second.device(), "!");
}

// A number that a dtype can't hold is refused at the call (fill_(300) of int8), so free scalars still differ by how
// many bits they need; zero for those that every dtype holds.
uint64_t size_class(int64_t value) {
  const uint64_t magnitude = static_cast<uint64_t>(value < 0 ? ~value : value);
  return magnitude <= 127 ? 0 : static_cast<uint64_t>(std::bit_width(magnitude)) << 1 | (value < 0 ? 1 : 0);
}

uint64_t size_class(double value) {
  if (std::abs(value) <= 127) {
    return 0;
  }
  if (!std::isfinite(value)) {
    return 1;
  }
  return static_cast<uint64_t>(std::ilogb(value)) << 1 | (value < 0 ? 1 : 0);
}

class Scanner {
 public:
  explicit Scanner(ScannedCall& call) : call_(call), entry_(*call.entry) {}

  void run() {
    // What integers are promoted to is a setting of the process.
    const auto default_dtype = static_cast<uint64_t>(c10::typeMetaToScalarType(c10::get_default_dtype()));
    call_.key.push_back(reinterpret_cast<uint64_t>(&entry_) ^ default_dtype << 56);
    push(c10::GradMode::is_enabled() ? 1 : 0); // some kernels keep a workspace for the backward pass
    uint32_t index = 0;
    for (const auto& value : call_.args) {
      argument(value, index++);
    }
    if (entry_.mutable_args != 0 && call_.tensors.size() > 1 && call_.tensors.size() <= kMaxOverlapPairs) {
      overlaps();
    }
  }

 private:
  // Beyond this many tensors (foreach lists) overlap is left to the kernel's own check, which then raises late.
  static constexpr size_t kMaxOverlapPairs = 12;

  void push(uint64_t word) { call_.key.push_back(word); }

  void argument(const c10::IValue& value, uint32_t index) {
    if (value.isTensor()) {
      tensor(value.toTensor().unsafeGetTensorImpl(), index);
    } else if (value.isNone()) {
      push(tagged(kNone));
    } else if (value.isInt()) {
      entry_.is_free_scalar(index) ? push(tagged(kFree, size_class(value.toInt()) << 8 | kInt))
                                   : (push(tagged(kInt)), push(uint64_t(value.toInt())));
    } else if (value.isDouble()) {
      entry_.is_free_scalar(index) ? push(tagged(kFree, size_class(value.toDouble()) << 8 | kDouble))
                                   : (push(tagged(kDouble)), push(std::bit_cast<uint64_t>(value.toDouble())));
    } else if (value.isBool()) {
      push(tagged(kBool, value.toBool() ? 1 : 0));
    } else if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      push(tagged(kComplex));
      push(std::bit_cast<uint64_t>(number.real()));
      push(std::bit_cast<uint64_t>(number.imag()));
    } else if (value.isString()) {
      text(value.toStringRef());
    } else if (value.isDevice()) {
      push(tagged(kDevice, uint64_t(value.toDevice().type()) << 8 | uint8_t(value.toDevice().index())));
      if (value.toDevice().type() == c10::DeviceType::PrivateUse1) {
        call_.device = value.toDevice().index();
      }
    } else if (value.isList()) {
      const auto items = value.toListRef();
      push(tagged(kList, items.size()));
      for (const auto& item : items) {
        argument(item, index);
      }
    } else if (value.isGenerator()) {
      push(tagged(kGenerator));
    } else if (value.isCapsule()) {
      push(tagged(kNone)); // a compiled graph, which has an entry of its own, and that begins the key
    } else {
      call_.keyable = false;
    }
  }

  void text(const std::string& value) {
    push(tagged(kString, value.size()));
    for (size_t i = 0; i < value.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, value.data() + i, std::min<size_t>(8, value.size() - i));
      push(word);
    }
  }

  void tensor(c10::TensorImpl* impl, uint32_t index) {
    if (impl == c10::UndefinedTensorImpl::singleton()) {
      push(tagged(kUndefined));
      return;
    }
    const bool on_host = !on_neuron(*impl, index);
    if (C10_UNLIKELY(entry_.masks_select && index == 1)) {
      const auto dtype = c10::typeMetaToScalarType(impl->dtype());
      call_.keyable &= dtype != c10::ScalarType::Bool && dtype != c10::ScalarType::Byte;
    }
    call_.tensors.push_back({impl, index, on_host});
    push(tagged(
        kTensor, uint64_t(c10::typeMetaToScalarType(impl->dtype())) | uint64_t(impl->dim()) << 8 |
                     uint64_t(impl->is_conj()) << 25 | uint64_t(impl->is_neg()) << 26 | uint64_t(on_host) << 27 |
                     uint64_t(impl->is_wrapped_number()) << 28));
    const auto sizes = impl->sizes();
    call_.key.append(sizes.begin(), sizes.end());
    // Also for contiguous tensors: the strides of dimensions of size one can decide the layout of a result.
    const auto strides = impl->strides();
    call_.key.append(strides.begin(), strides.end());
  }

  bool on_neuron(const c10::TensorImpl& impl, uint32_t index) {
    if (C10_LIKELY(impl.is_privateuseone() && impl.layout() == c10::kStrided)) {
      call_.untracked |= tracked(storage_of(impl)) == nullptr;
      call_.zero_tensors |= impl.key_set().has(c10::DispatchKey::ZeroTensor);
      const auto device = impl.device().index();
      if (first_ == nullptr) {
        first_ = &impl;
        call_.device = device;
      } else if (C10_UNLIKELY(device != call_.device)) {
        raise_mixed_devices(*first_, impl);
      }
      return true;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        impl.layout() == c10::kStrided, entry_.name, " on neuron: tensors of layout ", impl.layout(),
        " are not supported");
    if (!impl.is_cpu()) {
      TORCH_CHECK(
          false, "Expected all tensors to be on the same device, but found at least two devices, neuron and ",
          impl.device(), "! (", entry_.name, ")");
    }
    if (impl.dim() == 0) {
      TORCH_CHECK(!entry_.is_mutable(index), entry_.name, ": the output is on cpu while other tensors are on neuron");
      call_.host_scalars = true;
      return false;
    }
    if (!entry_.takes_host_tensor(index)) {
      raise_host_tensor(impl);
    }
    call_.host_tensors = true;
    return false;
  }

  [[noreturn]] void raise_host_tensor(const c10::TensorImpl& host) {
    if (first_ != nullptr) {
      raise_mixed_devices(*first_, host);
    }
    // The neuron tensor that brought the call here comes later among the arguments.
    TORCH_CHECK(
        false, "Expected all tensors to be on the same device, but found at least two devices, ", host.device(),
        " and neuron! (", entry_.name, ")");
  }

  void overlaps() {
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      if (!entry_.is_mutable(call_.tensors[i].arg)) {
        continue;
      }
      const auto& written = *call_.tensors[i].impl;
      for (size_t j = 0; j < call_.tensors.size(); ++j) {
        const auto& other = *call_.tensors[j].impl;
        if (i != j &&
            written.unsafe_storage().unsafeGetStorageImpl() == other.unsafe_storage().unsafeGetStorageImpl()) {
          call_.overlaps = true;
          push(tagged(kOverlap, uint64_t(&written == &other) << 40 | i << 16 | j));
          push(static_cast<uint64_t>(other.storage_offset() - written.storage_offset()));
        }
      }
    }
  }

  ScannedCall& call_;
  OpEntry& entry_;
  const c10::TensorImpl* first_ = nullptr;
};

// ---- the table ------------------------------------------------------------------------------------------------------

// Programs with ever new shapes must not grow without bound: a full table is emptied, and records are made again.
constexpr size_t kMaxRecords = 65536;

struct Table {
  std::mutex mutex;
  std::unordered_multimap<uint64_t, c10::intrusive_ptr<Record>> records;
  std::atomic<uint64_t> epoch{1};
  uint64_t evictions = 0;
};

Table& table() {
  static auto* const instance = new Table;
  return *instance;
}

// Direct-mapped, a thread. An entry keeps its record alive.
struct ThreadCache {
  static constexpr size_t kSize = 4096;
  uint64_t epoch = 0;
  std::vector<c10::intrusive_ptr<Record>> entries{kSize};
};

ThreadCache& thread_cache() {
  thread_local ThreadCache cache;
  return cache;
}

bool same_key(const Record& record, const KeyWords& key) noexcept {
  return record.key.size() == key.size() &&
         std::memcmp(record.key.data(), key.data(), key.size() * sizeof(uint64_t)) == 0;
}

} // namespace

void scan(OpEntry& entry, c10::ArrayRef<c10::IValue> args, ScannedCall& call) {
  call.entry = &entry;
  call.args = args;
  Scanner(call).run();
}

bool has_signature(const ScannedCall& call) noexcept {
  return call.keyable && !call.entry->always_inline && !call.host_tensors && !call.untracked;
}

void Record::finish() {
  for (uint32_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind == TensorSpec::Kind::Fresh && specs[i].source < 0 && specs[i].nbytes > 0) {
      own_memory.push_back(i);
    }
  }
  std::stable_sort(own_memory.begin(), own_memory.end(), [this](uint32_t a, uint32_t b) {
    return specs[a].ordinal < specs[b].ordinal;
  });
}

void Record::note_run_ticks(uint64_t ticks, bool one_thread) noexcept {
  threads.note(one_thread, ticks);
  note_run_time(run_ticks, ticks);
}

uint64_t hash_key(const KeyWords& key) noexcept {
  // Multiply and fold, two lanes, so that the multiplications overlap.
  uint64_t a = 0x9e3779b97f4a7c15ull;
  uint64_t b = 0xc2b2ae3d27d4eb4full;
  const size_t n = key.size();
  size_t i = 0;
  for (; i + 1 < n; i += 2) {
    a = (a ^ key[i]) * 0xff51afd7ed558ccdull;
    b = (b ^ key[i + 1]) * 0xc4ceb9fe1a85ec53ull;
    a ^= a >> 32;
    b ^= b >> 29;
  }
  if (i < n) {
    a = (a ^ key[i]) * 0xff51afd7ed558ccdull;
    a ^= a >> 32;
  }
  uint64_t h = a ^ (b * 0x165667b19e3779f9ull) ^ n;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 33);
}

Record* find_record(const KeyWords& key, uint64_t hash) {
  auto& cache = thread_cache();
  auto& all = table();
  const uint64_t epoch = all.epoch.load(std::memory_order_acquire);
  if (C10_UNLIKELY(cache.epoch != epoch)) {
    cache.entries.assign(ThreadCache::kSize, {});
    cache.epoch = epoch;
  }
  auto& cached = cache.entries[hash % ThreadCache::kSize];
  if (C10_LIKELY(cached && cached->hash == hash && same_key(*cached, key))) {
    return cached.get();
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  auto [it, end] = all.records.equal_range(hash);
  for (; it != end; ++it) {
    if (same_key(*it->second, key)) {
      cached = it->second;
      return cached.get();
    }
  }
  return nullptr;
}

uint64_t next_record_id() noexcept {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void store_record(c10::intrusive_ptr<Record> record) {
  auto& all = table();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.records.size() >= kMaxRecords) {
    all.records.clear();
    ++all.evictions;
    all.epoch.fetch_add(1, std::memory_order_acq_rel);
  }
  all.records.emplace(record->hash, std::move(record));
}

uint64_t signature_epoch() noexcept {
  return table().epoch.load(std::memory_order_acquire);
}

SignatureStats signature_stats() {
  auto& all = table();
  std::lock_guard<std::mutex> lock(all.mutex);
  return {all.records.size(), all.evictions};
}

} // namespace neuron::eager
