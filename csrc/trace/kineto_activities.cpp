// Kineto's header formats metadata with fmt, whose library the torch wheel does not export.
#define FMT_HEADER_ONLY 1

#include "trace/kineto_activities.h"

#include "device/config.h"
#include "trace/correlation.h"

#include <kineto/output_base.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace neuron::trace {

namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using libkineto::ITraceActivity;

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(
      prefixes.begin(), prefixes.end(), [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Events and waits order streams; their time is no work of the device, and would count as such in the profiler's sums.
bool is_synchronization(std::string_view name) {
  return starts_with_any(name, {"neuron::event_", "neuron::wait_"});
}

bool is_copy(std::string_view name) {
  return starts_with_any(name, {"neuron::copy", "aten::copy_", "aten::_copy_from"});
}

std::string device_name(int64_t device) {
  return "neuron:" + std::to_string(device);
}

class ActivityMaker {
 public:
  ActivityMaker(const std::set<ActivityType>& types, const libkineto::getLinkedActivityCallback& linked_activity)
      : types_(types), linked_activity_(linked_activity), buffer_(std::make_unique<libkineto::CpuTraceBuffer>()) {
    buffer_->span.name = "neuron";
    buffer_->gpuOpCount = 0;
  }

  void add(const Record& record) {
    const ActivityType type = is_copy(record.name) ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL;
    if (is_synchronization(record.name) || !types_.contains(type)) {
      return;
    }
    const ITraceActivity* op = linked(op_of(record.correlation));
    ++launches_; // also the id of the arrow: one CPU op may submit several launches
    if (op != nullptr && record.enqueued > 0 && types_.contains(ActivityType::PRIVATEUSE1_RUNTIME)) {
      add_submission(record, *op);
    }
    add_device_event(record, type, op);
    if (types_.contains(ActivityType::GPU_USER_ANNOTATION)) {
      extend_annotation(record);
      extend_region(record);
    }
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> finish() {
    for (const auto& [key, span] : annotations_) {
      const auto& [device, stream, id] = key;
      const ITraceActivity* annotation = linked(id);
      GenericTraceActivity& activity = emplace(ActivityType::GPU_USER_ANNOTATION, annotation->name());
      place(activity, device, stream, span.first, span.second);
      activity.id = id; // not linked: the profiler's sums would count it as work of its own
    }
    for (const auto& [key, region] : regions_) {
      const auto& [device, stream, number] = key;
      GenericTraceActivity& activity = emplace(ActivityType::GPU_USER_ANNOTATION, describe(region));
      place(activity, device, stream, region.started, region.ended);
      activity.addMetadata("region", number);
    }
    buffer_->span.opCount = static_cast<int>(launches_);
    buffer_->gpuOpCount = static_cast<int>(launches_);
    return std::move(buffer_);
  }

 private:
  const ITraceActivity* linked(int32_t id) const { return id == 0 ? nullptr : linked_activity_(id); }

  GenericTraceActivity& emplace(ActivityType type, const std::string& name) {
    buffer_->emplace_activity(buffer_->span, type, name);
    return *buffer_->activities.back();
  }

  static void place(
      GenericTraceActivity& activity, int64_t device, int64_t resource, int64_t start_ns, int64_t end_ns) {
    activity.device = static_cast<int32_t>(device);
    activity.resource = static_cast<int32_t>(resource);
    activity.startTime = start_ns;
    activity.endTime = std::max(start_ns, end_ns);
  }

  void set_flow(GenericTraceActivity& activity, bool start) const {
    activity.flow.id = launches_;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = start ? 1 : 0;
  }

  // A moment, not a span: what leads up to it is the CPU op's own time.
  void add_submission(const Record& record, const ITraceActivity& op) {
    GenericTraceActivity& activity = emplace(ActivityType::PRIVATEUSE1_RUNTIME, "neuronLaunch");
    place(activity, op.deviceId(), op.resourceId(), record.enqueued, record.enqueued);
    activity.threadId = op.getThreadId();
    activity.id = static_cast<int32_t>(launches_);
    activity.linked = &op;
    activity.addMetadata("correlation", launches_);
    set_flow(activity, true);
  }

  void add_device_event(const Record& record, ActivityType type, const ITraceActivity* op) {
    GenericTraceActivity& activity = emplace(type, record.name);
    place(activity, record.device, record.stream, record.started, record.ended);
    activity.id = static_cast<int32_t>(launches_);
    activity.linked = op;
    activity.addMetadata("device", record.device);
    activity.addMetadata("stream", record.stream);
    activity.addMetadata("correlation", launches_);
    activity.addMetadata("signature", record.signature);
    activity.addMetadata("inline", record.inline_run != 0);
    if (record.region != 0) {
      activity.addMetadata("region", record.region); // its time is an equal part of the region's
    }
    if (record.enqueued > 0) {
      activity.addMetadata("queued ns", std::max<int64_t>(0, record.started - record.enqueued));
    }
    if (op != nullptr && record.enqueued > 0 && types_.contains(ActivityType::PRIVATEUSE1_RUNTIME)) {
      set_flow(activity, false);
    }
  }

  void extend_annotation(const Record& record) {
    const int32_t id = annotation_of(record.correlation);
    if (linked(id) == nullptr) {
      return;
    }
    const auto key = std::make_tuple(record.device, record.stream, id);
    auto [it, is_new] = annotations_.try_emplace(key, record.started, record.ended);
    if (!is_new) {
      it->second.first = std::min(it->second.first, record.started);
      it->second.second = std::max(it->second.second, record.ended);
    }
  }

  struct Region {
    int64_t started = 0;
    int64_t ended = 0;
    std::vector<std::string_view> names;
  };

  void extend_region(const Record& record) {
    if (record.region == 0) {
      return;
    }
    Region& region = regions_[{record.device, record.stream, record.region}];
    if (region.names.empty()) {
      region.started = record.started;
    }
    region.ended = std::max(region.ended, record.ended);
    region.names.push_back(record.name);
  }

  // "region of 4: aten::mul.Tensor, 3 aten::add_.Tensor"
  static std::string describe(const Region& region) {
    std::string text = "region of " + std::to_string(region.names.size()) + ":";
    for (size_t first = 0, next = 0; first < region.names.size(); first = next) {
      while (next < region.names.size() && region.names[next] == region.names[first]) {
        ++next;
      }
      text += first == 0 ? " " : ", ";
      text += next - first == 1 ? "" : std::to_string(next - first) + " ";
      text += region.names[first];
    }
    return text;
  }

  const std::set<ActivityType>& types_;
  const libkineto::getLinkedActivityCallback& linked_activity_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  uint32_t launches_ = 0;
  // (device, stream, id of the annotation) to the first start and the last end of its launches there.
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::pair<int64_t, int64_t>> annotations_;
  std::map<std::tuple<int32_t, int32_t, uint32_t>, Region> regions_;
};

} // namespace

std::unique_ptr<libkineto::CpuTraceBuffer> make_activities(
    const std::vector<Record>& records, const std::set<ActivityType>& types,
    const libkineto::getLinkedActivityCallback& linked_activity) {
  ActivityMaker maker(types, linked_activity);
  for (const Record& record : records) {
    maker.add(record);
  }
  return maker.finish();
}

libkineto::DeviceInfo device_info(int32_t device) {
  // Kineto's own order: the rows of accelerators come below those of all processes.
  return {device, libkineto::kExceedMaxPid + device, device_name(device), "virtual NeuronCore on the host"};
}

void name_rows(const std::vector<Record>& records, libkineto::ActivityLogger& logger) {
  std::set<int32_t> devices;
  std::map<std::pair<int32_t, int32_t>, int64_t> first_start; // of each (device, stream)
  for (const Record& record : records) {
    if (!is_synchronization(record.name)) {
      first_start.try_emplace({record.device, record.stream}, record.started);
    }
  }
  for (const auto& [row, start_ns] : first_start) {
    const auto [device, stream] = row;
    if (devices.insert(device).second) {
      logger.handleDeviceInfo(device_info(device), start_ns);
    }
    logger.handleResourceInfo(
        {stream, stream, device, device_name(device) + " stream " + std::to_string(stream)}, start_ns);
  }
}

std::string device_properties_json() {
  std::string json;
  if (!config::is_configured()) {
    return json;
  }
  for (int device = 0; device < config::get().device_count; ++device) {
    json += json.empty() ? "" : ", ";
    json += "{\"id\": " + std::to_string(device) +
            ", \"name\": \"virtual NeuronCore\", \"totalGlobalMem\": " + std::to_string(config::get().hbm_bytes) + "}";
  }
  return json;
}

} // namespace neuron::trace
