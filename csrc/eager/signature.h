// Signatures: what decides the metadata of an operator's results, and the records of those results.
//
// The first time a signature is seen the operator runs inline, and what came out is recorded. From then on results are
// allocated from the record and the launch is enqueued. Keys are compared in full: a hash alone never decides.
#pragma once

#include "eager/one_thread.h"
#include "eager/op_entry.h"
#include "eager/product_choice.h"
#include "eager/tile_choice.h"

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace neuron::eager {

using KeyWords = c10::SmallVector<uint64_t, 64>;

// One tensor among the arguments, in the order in which they are met (lists are walked).
struct TensorArg {
  c10::TensorImpl* impl = nullptr;
  uint32_t arg = 0;
  bool on_host = false;
};

// The arguments of one call, scanned: its tensors, its device and its signature key.
struct ScannedCall {
  OpEntry* entry = nullptr;
  c10::ArrayRef<c10::IValue> args;
  c10::SmallVector<TensorArg, 8> tensors;
  c10::DeviceIndex device = -1;
  bool keyable = true;       // false: an argument that no key can stand for
  bool host_tensors = false; // a CPU tensor with dimensions
  bool untracked = false;    // a storage whose uses are not known: a launch on it must not be left pending
  bool host_scalars = false; // a CPU tensor without dimensions
  bool zero_tensors = false; // a tensor that stands for zeros and has no memory
  bool overlaps = false;     // an argument that is written shares its storage with another one
  KeyWords key;
};

// Throws what PyTorch throws for tensors on different devices.
void scan(OpEntry& entry, c10::ArrayRef<c10::IValue> args, ScannedCall& call);

// Whether calls like this one have a record.
bool has_signature(const ScannedCall& call) noexcept;

struct TensorSpec {
  enum class Kind : uint8_t { Undefined, Fresh, Arg, View };
  Kind kind = Kind::Undefined;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool conj = false;
  bool neg = false;
  int32_t ordinal = -1; // Fresh: which allocation of the kernel it is; -1 when that is not known
  int32_t source =
      -1; // Arg, View: index into ScannedCall::tensors; Fresh: index of an earlier spec whose storage it shares
  size_t nbytes = 0;  // Fresh: size of the storage
  int64_t offset = 0; // Fresh: storage offset; View: relative to the source's offset
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

struct ReturnSpec {
  bool is_list = false;
  uint32_t count = 1; // specs that belong to this return
};

struct Record : c10::intrusive_ptr_target {
  uint64_t id = 0;
  uint64_t hash = 0;
  std::vector<uint64_t> key;
  bool inline_only = false; // the results can't be described by specs
  std::vector<ReturnSpec> returns;
  std::vector<TensorSpec> specs;
  std::vector<uint32_t> own_memory;   // specs that get a block of their own, in the order in which the kernel allocates
  std::atomic<uint32_t> run_ticks{0}; // how long the kernel takes, in ticks of c10's approximate clock; moving average
  ThreadChoice threads;
  ProductChoice products;
  TileChoice tiles;

  // Call when all specs are there.
  void finish();
  void note_run_ticks(uint64_t ticks, bool one_thread) noexcept;
};

uint64_t hash_key(const KeyWords& key) noexcept;
// The record of a key, or null. Valid on the calling thread until its next call of `find_record`.
Record* find_record(const KeyWords& key, uint64_t hash);
// Ids are given before the first run, so that its launch carries one, too.
uint64_t next_record_id() noexcept;
void store_record(c10::intrusive_ptr<Record> record);

struct SignatureStats {
  uint64_t records = 0;
  uint64_t evictions = 0; // times the table was emptied because it was full
};
SignatureStats signature_stats();
// Changes when the table is emptied: ids of before are not given again.
uint64_t signature_epoch() noexcept;

} // namespace neuron::eager
