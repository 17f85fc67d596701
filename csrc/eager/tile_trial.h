// The trial behind tile_choice.h.
#pragma once

#include "kernels/tile_op.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace neuron::eager {

struct TileForm;

// Whether the steps over tiles give the bits of PyTorch's kernel for arguments like these, on made-up numbers: ordinary
// ones, sums that cancel, and any bits at all; in vectors, at their ends, and one by one. Throws for arguments that are
// nothing for tiles.
bool same_bits_by_tiles(
    const c10::OperatorHandle& op, const TileForm& form, const torch::jit::Stack& arguments,
    const kernels::TileVariant& variant);

} // namespace neuron::eager
