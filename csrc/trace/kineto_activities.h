// From records of the trace to Kineto's activities: device events, the submissions they came from, and the arrows.
#pragma once

#include "trace/ring.h"

#include <kineto/libkineto.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace neuron::trace {

// Makes, of the types asked for:
//   CONCURRENT_KERNEL, GPU_MEMCPY  one device event a launch, on row (device, stream), linked to its CPU op;
//   PRIVATEUSE1_RUNTIME            its submission on the CPU op's row, from which an arrow leads to the device event;
//   GPU_USER_ANNOTATION            each record_function's span on the device rows that its launches ran on; and each
//                                  region's, named after the launches that adaptive execution computed together.
std::unique_ptr<libkineto::CpuTraceBuffer> make_activities(
    const std::vector<Record>& records, const std::set<libkineto::ActivityType>& types,
    const libkineto::getLinkedActivityCallback& linked_activity);

// The name of a device's rows and their place among the others.
libkineto::DeviceInfo device_info(int32_t device);

// Names the rows of the devices and streams that occur in the records.
void name_rows(const std::vector<Record>& records, libkineto::ActivityLogger& logger);

// One JSON object a device, separated by commas.
std::string device_properties_json();

} // namespace neuron::trace
