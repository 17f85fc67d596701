#include "eager/op_entry.h"

#include "eager/policy.h"

#include <deque>
#include <mutex>
#include <unordered_map>

namespace neuron::eager {

namespace {

struct Registry {
  std::mutex mutex;
  std::deque<OpEntry> entries;
  std::unordered_map<size_t, OpEntry*> by_handle;
};

Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

// Direct-mapped, a thread: the global table is asked once a thread and operator.
struct CachedEntry {
  size_t key = 0;
  OpEntry* entry = nullptr;
};
constexpr size_t kCacheSize = 1024;
thread_local CachedEntry t_cache[kCacheSize];

// Operators of a torch.library end with it, and the next one may get the same handle.
bool belongs_to(const OpEntry& entry, const c10::OperatorHandle& op) {
  return !entry.foreign || *entry.foreign_schema == op.schema();
}

OpEntry& find_or_make(const c10::OperatorHandle& op, size_t key) {
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  OpEntry*& entry = all.by_handle[key];
  if (entry == nullptr || !belongs_to(*entry, op)) {
    entry = &all.entries.emplace_back(op);
  }
  return *entry;
}

} // namespace

OpEntry::OpEntry(const c10::OperatorHandle& handle) : op(handle) {
  const auto& schema = handle.schema();
  name = schema.name();
  if (!schema.overload_name().empty()) {
    name += "." + schema.overload_name();
  }
  num_args = static_cast<uint32_t>(schema.arguments().size());
  num_returns = static_cast<uint32_t>(schema.returns().size());
  for (uint32_t i = 0; i < num_args && i < 64; ++i) {
    const auto& arg = schema.arguments()[i];
    if (arg.alias_info() != nullptr && arg.alias_info()->isWrite()) {
      mutable_args |= uint64_t{1} << i;
    }
    if (arg.name() == "generator") {
      generator_arg = static_cast<int8_t>(i);
    }
  }
  return_is_arg.assign(num_returns, -1);
  for (uint32_t r = 0; r < num_returns; ++r) {
    const auto* alias = schema.returns()[r].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      continue;
    }
    for (uint32_t i = 0; i < num_args && i < 64; ++i) {
      const auto* candidate = schema.arguments()[i].alias_info();
      if (candidate != nullptr && candidate->isWrite() && candidate->beforeSets() == alias->beforeSets()) {
        return_is_arg[r] = static_cast<int8_t>(i);
      }
    }
  }
  apply_policy(*this);
  if (foreign) {
    foreign_schema = schema;
  }
}

bool OpEntry::has_host_kernel() const {
  return op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

OpEntry& op_entry(const c10::OperatorHandle& op) {
  const size_t key = std::hash<c10::OperatorHandle>{}(op);
  CachedEntry& cached = t_cache[(key >> 4) % kCacheSize];
  if (C10_UNLIKELY(cached.key != key || !belongs_to(*cached.entry, op))) {
    cached = {key, &find_or_make(op, key)};
  }
  return *cached.entry;
}

void for_each_op_entry(const std::function<void(OpEntry&)>& visit) {
  auto& all = registry();
  size_t count = 0;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    count = all.entries.size();
  }
  for (size_t i = 0; i < count; ++i) {
    OpEntry* entry = nullptr;
    {
      std::lock_guard<std::mutex> lock(all.mutex);
      entry = &all.entries[i];
    }
    visit(*entry);
  }
}

} // namespace neuron::eager
