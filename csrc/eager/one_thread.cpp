#include "eager/one_thread.h"

#include "eager/op_entry.h"
#include "eager/run_time.h"
#include "eager/trial.h"
#include "trace/clock.h"

#include <ATen/Parallel.h>

#include <dlfcn.h>

#include <cstdlib>
#include <exception>

namespace neuron::eager {

namespace {

// A trial costs about ten runs, so what does not recur has none, nor has what is too large to profit.
constexpr uint32_t kRunsBeforeTrial = 4;
constexpr int64_t kMaxTriedNumbers = 512 * 1024;
// A caller may begin to wait at any time: then what runs on one thread should end soon.
constexpr double kLongestNs = 1e6;
// Kernels up to this long gain too little from more threads even on cores that nobody needs: in a process where several
// threads have run kernels there are more OpenMP threads than cores, and then they sleep between kernels.
constexpr double kTinyNs = 200e3;
// What many threads do that much faster than one is left to them.
constexpr double kMaxSpeedup = 2.25;

double longest_ticks() {
  static const double ticks = kLongestNs * trace::ticks_per_ns();
  return ticks;
}

// Not linked: which library has them depends on how torch was built, and one without them can do nothing here.
struct ThreadSetters {
  void (*omp)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  // Of the calling thread only, 0 for the process's setting; gives what was set.
  int (*mkl)(int) = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
};

const ThreadSetters& setters() {
  static const ThreadSetters found;
  return found;
}

bool same_bits_on_one_thread(OpEntry& entry, const torch::jit::Stack& arguments) {
  if (count_numbers(arguments) > kMaxTriedNumbers) {
    return false;
  }
  const auto run = [&](const torch::jit::Stack& stack, bool one_thread) {
    return run_on_copies(stack, [&](torch::jit::Stack& copies) {
      OneThread scope(one_thread);
      entry.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &copies);
    });
  };
  TrialValues values;
  for (const auto kind : {TrialValues::Kind::Random, TrialValues::Kind::Cancelling}) {
    const auto stack = values.like(arguments, kind, adds_to_products(entry.product));
    if (!same_bits(run(stack, true), run(stack, false))) {
      return false;
    }
  }
  return true;
}

} // namespace

void ThreadChoice::accept() noexcept {
  const int threads = at::get_num_threads();
  if (threads > 1 && setters().omp != nullptr) {
    verdict_.store(threads, std::memory_order_relaxed);
  }
}

void ThreadChoice::try_once(OpEntry& entry, const torch::jit::Stack& arguments, uint32_t run_ticks) {
  const int threads = at::get_num_threads();
  if (threads <= 1 || std::abs(verdict_.load(std::memory_order_relaxed)) == threads || setters().omp == nullptr) {
    return;
  }
  if (runs_.fetch_add(1, std::memory_order_relaxed) < kRunsBeforeTrial || run_ticks > longest_ticks()) {
    return;
  }
  bool same = false;
  try {
    same = same_bits_on_one_thread(entry, arguments);
  } catch (const std::exception&) {
    // There are no random values of this dtype, or the kernel refuses what it was given. The launch itself will tell.
  }
  verdict_.store(same ? threads : -threads, std::memory_order_relaxed);
  all_ticks_.store(0, std::memory_order_relaxed);
  one_ticks_.store(0, std::memory_order_relaxed);
}

bool ThreadChoice::prefers_one(bool caller_waits) const noexcept {
  if (verdict_.load(std::memory_order_relaxed) != at::get_num_threads()) {
    return false;
  }
  const double longest = longest_ticks();
  static const double tiny = kTinyNs * trace::ticks_per_ns();
  const double all = all_ticks_.load(std::memory_order_relaxed);
  const double one = one_ticks_.load(std::memory_order_relaxed);
  if (one == 0) { // not known yet: at most this long
    return all * at::get_num_threads() <= (caller_waits ? tiny : longest);
  }
  if (all > 0 && one > all * kMaxSpeedup) {
    return false;
  }
  return one <= (caller_waits ? tiny : longest);
}

void ThreadChoice::note(bool one_thread, uint64_t ticks) noexcept {
  if (may_use_one()) {
    note_run_time(one_thread ? one_ticks_ : all_ticks_, ticks);
  }
}

OneThread::OneThread(bool on) noexcept {
  if (!on || setters().omp == nullptr) {
    return;
  }
  threads_ = at::get_num_threads();
  setters().omp(1);
  if (setters().mkl != nullptr) {
    mkl_threads_ = setters().mkl(1);
  }
}

OneThread::~OneThread() {
  if (threads_ == 0) {
    return;
  }
  setters().omp(threads_);
  if (setters().mkl != nullptr) {
    setters().mkl(mkl_threads_);
  }
}

} // namespace neuron::eager
