// The ids of the signatures that one operator met last on this thread, found from its arguments as they are: boxing and
// scanning them, for a traced launch that needs no more than the id, would cost more than the rest of the trace.
#pragma once

#include "eager/signature.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/Scalar.h>
#include <c10/util/OptionalArrayRef.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

namespace neuron::eager {

// What a signature key (signature.cpp) depends on, in a form that is quicker to make. Too large a call has none.
class ArgumentWords {
 public:
  ArgumentWords() {
    push(static_cast<uint64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())) << 1 | c10::GradMode::is_enabled());
  }

  void add(const at::Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    const auto sizes = impl.sizes();
    const auto strides = impl.strides();
    push(
        static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype())) | sizes.size() << 8 |
        uint64_t{impl.is_wrapped_number()} << 32 | uint64_t{impl.is_privateuseone()} << 33);
    add(sizes);
    add(strides);
    for (size_t i = 0; i < tensor_count_; ++i) {
      shares_memory_ |= storages_[i] == impl.unsafe_storage().unsafeGetStorageImpl();
    }
    if (tensor_count_ < storages_.size()) {
      storages_[tensor_count_++] = impl.unsafe_storage().unsafeGetStorageImpl();
    }
  }
  void add(const at::Scalar& scalar) {
    push(static_cast<uint64_t>(scalar.type()));
    if (scalar.isFloatingPoint()) {
      push(std::bit_cast<uint64_t>(scalar.toDouble()));
    } else if (scalar.isIntegral(/*includeBool=*/true)) {
      push(static_cast<uint64_t>(scalar.toLong()));
    } else {
      fits_ = false;
    }
  }
  void add(c10::IntArrayRef numbers) {
    push(numbers.size());
    for (const int64_t number : numbers) {
      push(static_cast<uint64_t>(number));
    }
  }
  void add(at::OptionalIntArrayRef numbers) {
    push(numbers.has_value());
    if (numbers.has_value()) {
      add(*numbers);
    }
  }
  void add(std::optional<c10::ScalarType> dtype) { push(dtype.has_value() ? 1 + static_cast<uint64_t>(*dtype) : 0); }
  void add(bool flag) { push(flag); }

  // Where a tensor that is written lies in another one is part of a signature, but not of these words.
  bool complete(bool writes) const { return fits_ && !(writes && shares_memory_); }
  bool operator==(const ArgumentWords& other) const {
    return size_ == other.size_ && std::memcmp(words_.data(), other.words_.data(), size_ * sizeof(uint64_t)) == 0;
  }

 private:
  void push(uint64_t word) {
    if (size_ < words_.size()) {
      words_[size_++] = word;
    } else {
      fits_ = false;
    }
  }

  std::array<uint64_t, 32> words_; // the first size_ are set
  size_t size_ = 0;
  std::array<const void*, 4> storages_{};
  size_t tensor_count_ = 0;
  bool fits_ = true;
  bool shares_memory_ = false;
};

class RecentSignatures {
 public:
  // 0 when it is not among them.
  uint64_t find(const ArgumentWords& words) {
    if (epoch_ != signature_epoch()) {
      entries_ = {};
      epoch_ = signature_epoch();
    }
    for (const Entry& entry : entries_) {
      if (entry.id != 0 && entry.words == words) {
        return entry.id;
      }
    }
    return 0;
  }
  void keep(const ArgumentWords& words, uint64_t id) {
    entries_[next_] = {words, id};
    next_ = (next_ + 1) % entries_.size();
  }

 private:
  struct Entry {
    ArgumentWords words;
    uint64_t id = 0;
  };
  std::array<Entry, 4> entries_;
  size_t next_ = 0;
  uint64_t epoch_ = 0;
};

} // namespace neuron::eager
