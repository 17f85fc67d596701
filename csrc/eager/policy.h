// The policy table: which operators need more than "look the signature up and enqueue".
//
// To give an operator a policy, add its base name (without overload) to the right list in policy.cpp. The default is
// safe for every operator whose result metadata follows from the metadata of its arguments and its non-tensor values;
// a wrong default is caught when the launch runs (its result is compared with the record) and raises.
#pragma once

#include "eager/op_entry.h"

#include <string_view>

namespace neuron::eager {

void apply_policy(OpEntry& entry);

// True for composite operators that are launched whole, instead of op by op: `_foreach_*`, scalar overloads, ...
// Their CPU composite kernel does the same operations in the same order, on the aliases.
bool launch_whole(std::string_view base_name, std::string_view overload);

} // namespace neuron::eager
