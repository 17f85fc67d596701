#include "trace/kineto_plugin.h"

#include "stream/finish_launches.h"
#include "trace/correlation.h"
#include "trace/kineto_activities.h"
#include "trace/ring.h"

#include <c10/util/Exception.h>
#include <kineto/libkineto.h>

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace neuron::trace {

namespace {

using libkineto::ActivityType;

constexpr size_t kSessionCapacity = size_t{1} << 22; // launches of one profile; memory is taken as they come

// What the times mean; goes into every exported profile.
constexpr const char* kMeasured =
    "\"Times of neuron devices are measured: the host's execution of launches on virtual NeuronCores. "
    "They are not a prediction for a chip.\"";

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}

  ~Session() override {
    if (reader_ != nullptr) {
      end_correlation_session();
    }
  }

  void start() override {
    finish_launches(); // what was submitted before the profile is no part of it
    reader_ = std::make_unique<Reader>(kSessionCapacity);
    begin_correlation_session();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    if (reader_ == nullptr) {
      return;
    }
    end_correlation_session();
    finish_launches(); // their records are in the ring then
    records_ = reader_->take();
    dropped_ = reader_->dropped();
    reader_.reset();
    status_ = libkineto::TraceStatus::PROCESSING;
    if (dropped_ > 0) {
      TORCH_WARN(
          "this profile lacks its first ", dropped_, " launches: at most ", kSessionCapacity,
          " are kept. Profile fewer steps (torch.profiler.schedule).");
    }
  }

  std::vector<std::string> errors() override {
    if (dropped_ == 0) {
      return {};
    }
    return {std::to_string(dropped_) + " launches were overwritten before the profile ended"};
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    process(logger, [](int32_t) { return nullptr; }, 0);
  }

  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked_activity, int64_t start_ns,
      int64_t /*end_ns*/) override {
    process(logger, linked_activity, start_ns);
  }

  // Without an answer Kineto names the rows "GPU 0" to "GPU 15". It asks for one device; process() names those that
  // ran.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(device_info(first_device_));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { push_op(id); }
  void popCorrelationId() override { pop_op(); }
  void pushUserCorrelationId(uint64_t id) override { push_annotation(id); }
  void popUserCorrelationId() override { pop_annotation(); }

  std::string getDeviceProperties() override { return device_properties_json(); }

  std::unordered_map<std::string, std::string> getMetadata() override {
    return {{"neuron_times", kMeasured}, {"neuron_dropped_launches", std::to_string(dropped_)}};
  }

 private:
  void process(
      libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked_activity,
      int64_t start_ns) {
    // A launch that another reader's trace saw start before this profile did belongs to no op of it.
    std::erase_if(records_, [&](const Record& record) { return record.started < start_ns; });
    buffer_ = make_activities(records_, types_, linked_activity);
    for (const auto& activity : buffer_->activities) {
      activity->log(logger);
    }
    name_rows(records_, logger);
    first_device_ = records_.empty() ? 0 : records_.front().device;
    records_.clear();
  }

  const std::set<ActivityType> types_;
  std::unique_ptr<Reader> reader_;
  std::vector<Record> records_;
  uint64_t dropped_ = 0;
  int32_t first_device_ = 0;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return available_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& activity_types, const libkineto::Config& /*config*/) override {
    // A profile of the CPU alone asks for runtime activities, too; it should cost nothing here.
    const bool wants_device =
        activity_types.contains(ActivityType::CONCURRENT_KERNEL) || activity_types.contains(ActivityType::GPU_MEMCPY);
    return wants_device ? std::make_unique<Session>(activity_types) : nullptr;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t /*ts_ms*/, int64_t /*duration_ms*/, const std::set<ActivityType>& activity_types,
      const libkineto::Config& config) override {
    return configure(activity_types, config);
  }

 private:
  const std::string name_ = "neuron";
  const std::set<ActivityType> available_ = {
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_USER_ANNOTATION,
      ActivityType::PRIVATEUSE1_RUNTIME};
};

} // namespace

void register_kineto_plugin() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

} // namespace neuron::trace
