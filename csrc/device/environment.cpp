#include "device/environment.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace neuron {

bool switch_is_on(const char* variable) noexcept {
  constexpr std::array<const char*, 4> kOn{"1", "true", "yes", "on"};
  const char* const value = std::getenv(variable);
  return value != nullptr &&
         std::any_of(kOn.begin(), kOn.end(), [&](const char* on) { return strcasecmp(value, on) == 0; });
}

} // namespace neuron
