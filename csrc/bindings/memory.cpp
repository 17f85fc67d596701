#include "bindings/bindings.h"
#include "device/config.h"
#include "memory/caching_allocator.h"
#include "memory/caching_allocator_registry.h"
#include "memory/guard_pages.h"
#include "memory/pinned.h"
#include "memory/snapshot.h"
#include "stream/stream_pool.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <c10/core/AllocatorConfig.h>

#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace neuron {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;

// ---- statistics
// ------------------------------------------------------------------------------------------------------

py::dict to_dict(const Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict to_dict(const StatArray& stats) {
  static constexpr std::array<const char*, 3> kNames = {"all", "small_pool", "large_pool"};
  py::dict result;
  for (size_t i = 0; i < kNames.size(); ++i) {
    result[kNames[i]] = to_dict(stats[i]);
  }
  return result;
}

py::dict to_dict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0.0 : static_cast<double>(stat.total) / static_cast<double>(stat.count);
  return result;
}

py::dict device_memory_stats(c10::DeviceIndex device) {
  const auto stats = memory::device_stats(device);
  py::dict result;
  result["allocation"] = to_dict(stats.allocation);
  result["segment"] = to_dict(stats.segment);
  result["active"] = to_dict(stats.active);
  result["inactive_split"] = to_dict(stats.inactive_split);
  result["allocated_bytes"] = to_dict(stats.allocated_bytes);
  result["reserved_bytes"] = to_dict(stats.reserved_bytes);
  result["active_bytes"] = to_dict(stats.active_bytes);
  result["inactive_split_bytes"] = to_dict(stats.inactive_split_bytes);
  result["requested_bytes"] = to_dict(stats.requested_bytes);
  result["oversize_allocations"] = to_dict(stats.oversize_allocations);
  result["oversize_segments"] = to_dict(stats.oversize_segments);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = stats.max_split_size;
  // TorchNeuron's names for two totals.
  result["allocation_requests"] = stats.active[0].allocated;
  result["num_tensor_frees"] = stats.active[0].freed;
  return result;
}

py::dict host_memory_stats() {
  const at::HostStats stats = memory::pinned_host_allocator().get_stats();
  py::dict result;
  result["allocations"] = to_dict(stats.allocations);
  result["allocated_bytes"] = to_dict(stats.allocated_bytes);
  result["active_requests"] = to_dict(stats.active_requests);
  result["active_bytes"] = to_dict(stats.active_bytes);
  result["host_alloc_time"] = to_dict(stats.host_alloc_time);
  result["host_free_time"] = to_dict(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

// ---- history and snapshot
// --------------------------------------------------------------------------------------------

memory::Context gather_python_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}

memory::Context gather_whole_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true);
}

memory::ContextLevel context_level(const std::optional<std::string>& context) {
  if (!context.has_value()) {
    return memory::ContextLevel::kNever;
  }
  static const std::unordered_map<std::string, memory::ContextLevel> kLevels = {
      {"state", memory::ContextLevel::kState},
      {"alloc", memory::ContextLevel::kAlloc},
      {"all", memory::ContextLevel::kAll}};
  const auto found = kLevels.find(*context);
  TORCH_CHECK_VALUE(
      found != kLevels.end(), "expected context to be 'state', 'alloc', 'all' or None, but got '", *context, "'");
  return found->second;
}

uint32_t bits_of_actions(const std::vector<std::string>& names) {
  uint32_t bits = 0;
  for (const std::string& name : names) {
    int action = 0;
    while (action < memory::kHistoryActionCount && name != name_of(static_cast<memory::HistoryAction>(action))) {
      ++action;
    }
    TORCH_CHECK_VALUE(action < memory::kHistoryActionCount, "unknown action in skip_actions: '", name, "'");
    bits |= 1U << action;
  }
  return bits;
}

void record_memory_history(
    const std::optional<std::string>& enabled, const std::optional<std::string>& context, const std::string& stacks,
    size_t max_entries, bool clear_history, const std::vector<std::string>& skip_actions) {
  TORCH_CHECK_VALUE(
      !enabled.has_value() || *enabled == "state" || *enabled == "all",
      "expected enabled to be 'state', 'all' or None, but got '", *enabled, "'");
  TORCH_CHECK_VALUE(
      stacks == "python" || stacks == "all", "expected stacks to be 'python' or 'all', but got '", stacks, "'");
  memory::HistoryOptions options;
  options.recording = enabled.has_value();
  options.keep_entries = options.recording && *enabled == "all";
  options.contexts = context_level(context);
  options.gather = stacks == "all" ? &gather_whole_stack : &gather_python_stack;
  options.max_entries = max_entries;
  options.skipped_actions = bits_of_actions(skip_actions);
  memory::configure_history(options, clear_history);
}

// Makes Python lists of the contexts of a snapshot, all at once, since symbolizing is shared work.
class Frames {
 public:
  // Adds `frames` to `owner` when the context is known, now or in resolve().
  void add(py::dict owner, const memory::Context& context) {
    if (auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get())) {
      owners_.push_back(std::move(owner));
      tracebacks_.push_back(traceback);
    } else {
      owner["frames"] = py::list();
    }
  }

  void resolve() {
    // The same place is met often: symbolize it once.
    std::unordered_map<torch::CapturedTraceback*, size_t> positions;
    std::vector<torch::CapturedTraceback*> distinct;
    for (auto* traceback : tracebacks_) {
      if (positions.emplace(traceback, distinct.size()).second) {
        distinct.push_back(traceback);
      }
    }
    const auto symbolized = torch::symbolize(distinct);
    std::vector<py::dict> frames;
    for (const auto& frame : symbolized.all_frames) {
      py::dict entry;
      entry["name"] = frame.funcname;
      entry["filename"] = frame.filename;
      entry["line"] = frame.lineno;
      frames.push_back(std::move(entry));
    }
    std::vector<py::list> stacks;
    for (const auto& indices : symbolized.tracebacks) {
      py::list stack;
      for (const uint64_t index : indices) {
        stack.append(frames.at(index));
      }
      stacks.push_back(std::move(stack));
    }
    for (size_t i = 0; i < owners_.size(); ++i) {
      owners_[i]["frames"] = stacks.at(positions.at(tracebacks_[i]));
    }
  }

 private:
  std::vector<py::dict> owners_;
  std::vector<torch::CapturedTraceback*> tracebacks_;
};

const char* name_of_state(memory::BlockState state) {
  switch (state) {
    case memory::BlockState::kLive:
      return "active_allocated";
    case memory::BlockState::kAwaiting:
      return "active_awaiting_free";
    case memory::BlockState::kFree:
    case memory::BlockState::kBinned:
      break;
  }
  return "inactive";
}

py::dict to_dict(const memory::SegmentSnapshot& segment, Frames& frames) {
  py::dict result;
  result["device"] = segment.device;
  result["address"] = segment.address;
  result["total_size"] = segment.total_size;
  result["allocated_size"] = segment.allocated_size;
  result["active_size"] = segment.active_size;
  result["requested_size"] = segment.requested_size;
  result["stream"] = segment.stream;
  result["segment_type"] = segment.large ? "large" : "small";
  result["segment_pool_id"] = py::make_tuple(0, 0);
  result["is_expandable"] = false;
  frames.add(result, segment.context);
  py::list blocks;
  for (const auto& block : segment.blocks) {
    py::dict entry;
    entry["address"] = block.address;
    entry["size"] = block.size;
    entry["requested_size"] = block.requested;
    entry["state"] = name_of_state(block.state);
    frames.add(entry, block.context);
    blocks.append(std::move(entry));
  }
  result["blocks"] = std::move(blocks);
  return result;
}

py::dict to_dict(const memory::HistoryEntry& entry, Frames& frames) {
  py::dict result;
  result["action"] = memory::name_of(entry.action);
  const bool out_of_memory = entry.action == memory::HistoryAction::kOutOfMemory;
  result[out_of_memory ? "device_free" : "addr"] = entry.address;
  result["size"] = entry.size;
  result["stream"] = entry.stream;
  result["time_us"] = entry.time_us;
  result["pool_id"] = py::make_tuple(0, 0);
  result["compile_context"] = "";
  result["user_metadata"] = entry.user_metadata;
  frames.add(result, entry.context);
  return result;
}

py::dict allocator_settings() {
  using Settings = c10::CachingAllocator::AcceleratorAllocatorConfig;
  const memory::AllocatorConfig config = memory::read_allocator_config();
  py::dict result;
  result["PYTORCH_ALLOC_CONF"] = Settings::last_allocator_settings();
  result["max_split_size"] =
      config.max_split_bytes == std::numeric_limits<size_t>::max() ? -1 : static_cast<int64_t>(config.max_split_bytes);
  result["max_non_split_rounding_size"] = config.max_non_split_rounding_bytes;
  result["garbage_collection_threshold"] = config.garbage_collection_threshold;
  result["expandable_segments"] = false;
  return result;
}

py::dict memory_snapshot(bool with_traces) {
  memory::Snapshot snapshot;
  {
    py::gil_scoped_release no_gil;
    snapshot = memory::take_snapshot(with_traces);
  }
  Frames frames;
  py::list segments;
  for (const auto& segment : snapshot.segments) {
    segments.append(to_dict(segment, frames));
  }
  py::list traces;
  const auto devices = static_cast<size_t>(config::device_count_or_zero());
  snapshot.device_histories.resize(std::max(devices, snapshot.device_histories.size()));
  for (const auto& history : snapshot.device_histories) {
    py::list trace;
    for (const auto& entry : history) {
      trace.append(to_dict(entry, frames));
    }
    traces.append(std::move(trace));
  }
  frames.resolve();
  py::dict result;
  result["segments"] = std::move(segments);
  result["device_traces"] = std::move(traces);
  result["allocator_settings"] = allocator_settings();
  result["external_annotations"] = py::list();
  return result;
}

py::object allocation_traceback(uintptr_t address) {
  memory::Context context;
  {
    py::gil_scoped_release no_gil;
    for (const auto& segment : memory::take_snapshot(/*entries=*/false).segments) {
      for (const auto& block : segment.blocks) {
        if (block.address == address && block.state == memory::BlockState::kLive) {
          context = block.context;
        }
      }
    }
  }
  if (context == nullptr) {
    return py::none();
  }
  py::dict holder;
  Frames frames;
  frames.add(holder, context);
  frames.resolve();
  return holder["frames"];
}

// Called with (device, requested, reserved, allowed) before an out-of-memory error is raised.
void attach_out_of_memory_observer(py::object observer) {
  // Never released: an error may be raised while the interpreter ends.
  PyObject* const callable = observer.release().ptr();
  memory::add_out_of_memory_observer(
      [callable](c10::DeviceIndex device, size_t requested, size_t reserved, size_t allowed) {
        if (Py_IsInitialized() == 0) {
          return;
        }
        py::gil_scoped_acquire gil;
        PyObject* const result = PyObject_CallFunction(
            callable, "iKKK", static_cast<int>(device), static_cast<unsigned long long>(requested),
            static_cast<unsigned long long>(reserved), static_cast<unsigned long long>(allowed));
        if (result == nullptr) {
          PyErr_WriteUnraisable(callable); // the out-of-memory error is the one to raise
        }
        Py_XDECREF(result);
      });
}

// ---- raw memory for other frameworks
// ---------------------------------------------------------------------------------

struct RawAllocations {
  std::mutex mutex;
  std::unordered_map<uintptr_t, c10::DataPtr> by_address;
};
RawAllocations& raw_allocations() {
  static auto* const all = new RawAllocations;
  return *all;
}

uintptr_t raw_alloc(size_t nbytes, c10::DeviceIndex device, c10::StreamId stream) {
  config::check_device_index(device);
  Stream& owner =
      lookup_stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device), stream));
  c10::DataPtr memory = memory::allocate_data_ptr(device, nbytes, owner);
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  if (address != 0) {
    std::lock_guard<std::mutex> lock(raw_allocations().mutex);
    raw_allocations().by_address.emplace(address, std::move(memory));
  }
  return address;
}

void raw_delete(uintptr_t address) {
  if (address == 0) {
    return;
  }
  c10::DataPtr memory;
  {
    std::lock_guard<std::mutex> lock(raw_allocations().mutex);
    const auto found = raw_allocations().by_address.find(address);
    TORCH_CHECK_VALUE(
        found != raw_allocations().by_address.end(), "invalid device pointer: ", address,
        " was not returned by caching_allocator_alloc, or was deleted already");
    memory = std::move(found->second);
    raw_allocations().by_address.erase(found);
  }
}

} // namespace

void bind_memory(py::module& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();

  module.def("memory_stats", &device_memory_stats);
  module.def("reset_accumulated_memory_stats", &memory::reset_accumulated_stats, no_gil);
  module.def("reset_peak_memory_stats", &memory::reset_peak_stats, no_gil);
  module.def("memory_info", &memory::memory_info, no_gil);
  module.def("largest_free_block", &memory::largest_free_block, no_gil);
  module.def("empty_cache", &memory::empty_cache, no_gil);
  module.def("set_memory_fraction", &memory::set_memory_fraction, no_gil);
  module.def("memory_fraction", &memory::memory_fraction, no_gil);
  module.def("raw_alloc", &raw_alloc, no_gil);
  module.def("raw_delete", &raw_delete, no_gil);

  module.def("memory_snapshot", &memory_snapshot);
  module.def("record_memory_history", &record_memory_history);
  module.def("set_memory_metadata", &memory::set_history_metadata);
  module.def("memory_metadata", &memory::history_metadata);
  module.def("allocation_traceback", &allocation_traceback);
  module.def("attach_out_of_memory_observer", &attach_out_of_memory_observer);

  module.def("host_memory_stats", &host_memory_stats);
  module.def("empty_host_cache", [] { memory::pinned_host_allocator().empty_cache(); }, no_gil);
  module.def("reset_accumulated_host_memory_stats", [] { memory::pinned_host_allocator().reset_accumulated_stats(); });
  module.def("reset_peak_host_memory_stats", [] { memory::pinned_host_allocator().reset_peak_stats(); });

  module.def("set_memory_guard", &memory::set_guard_mode, no_gil);
  module.def("memory_guard_enabled", [] { return memory::guard::enabled.load(); });
}

} // namespace neuron
