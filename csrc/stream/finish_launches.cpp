#include "stream/finish_launches.h"

#include "device/config.h"
#include "device/gil.h"
#include "stream/stream_pool.h"

namespace neuron {

void finish_launches() {
  if (!config::is_started() || config::in_bad_fork()) {
    return;
  }
  without_gil([] {
    for (int device = 0; device < config::get().device_count; ++device) {
      for_each_stream(static_cast<c10::DeviceIndex>(device), [](Stream& stream) { stream.wait(stream.submitted()); });
    }
  });
}

} // namespace neuron
