#include "eager/fallback.h"

#include "device/environment.h"

#include <c10/util/Exception.h>

namespace neuron::eager {

namespace {

std::atomic<bool>& forbidden_flag() {
  static std::atomic<bool> flag{switch_is_on("TORCH_NEURONX_FORBID_FALLBACK")};
  return flag;
}

} // namespace

void note_fallback(OpEntry& entry, const char* cause) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !fallbacks_forbidden(), entry.name, " would fall back: ", cause,
      ". Fallbacks are forbidden (TORCH_NEURONX_FORBID_FALLBACK=1).");
  if (entry.fallbacks.fetch_add(1, std::memory_order_relaxed) == 0) {
    TORCH_WARN(entry.name, " fell back: ", cause, ". This is said once for each operator.");
  }
}

void set_fallbacks_forbidden(bool forbidden) noexcept {
  forbidden_flag().store(forbidden, std::memory_order_relaxed);
}

bool fallbacks_forbidden() noexcept {
  return forbidden_flag().load(std::memory_order_relaxed);
}

} // namespace neuron::eager
