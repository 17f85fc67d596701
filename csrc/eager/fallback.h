// Fallbacks: work on neuron tensors that something other than the device's executor did. Counted, warned about once an
// operator, and an error when TORCH_NEURONX_FORBID_FALLBACK=1.
#pragma once

#include "eager/op_entry.h"

namespace neuron::eager {

// Call before the fallback runs. Throws when fallbacks are forbidden.
void note_fallback(OpEntry& entry, const char* cause);

void set_fallbacks_forbidden(bool forbidden) noexcept;
bool fallbacks_forbidden() noexcept;

} // namespace neuron::eager
