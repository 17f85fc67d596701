#include "stream/stream.h"

#include "device/config.h"
#include "device/gil.h"
#include "stream/spin.h"
#include "trace/ring.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace neuron {

namespace {

// How long an executor stays awake for the next launch, and a caller for a result, before going to sleep.
constexpr std::chrono::microseconds kExecutorSpin{40};
constexpr std::chrono::microseconds kWaiterSpin{40};

thread_local const Stream* t_executed = nullptr; // the stream whose launches this thread runs

std::atomic<DescribePythonLine> g_describe_python_line{nullptr};

struct FunctionLaunch final : LaunchPayload {
  explicit FunctionLaunch(std::function<void()> fn) : fn_(std::move(fn)) {}
  void run() override { fn_(); }
  void release() noexcept override { fn_ = nullptr; }

 private:
  std::function<void()> fn_;
};

// Signals belong to the threads that run Python.
void block_signals() noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

} // namespace

const Stream* executed_stream() noexcept {
  return t_executed;
}

void set_describe_python_line(DescribePythonLine describe) noexcept {
  g_describe_python_line.store(describe, std::memory_order_release);
}

std::string describe(const LaunchSource& source) {
  std::string text = source.name;
  auto describe_line = g_describe_python_line.load(std::memory_order_acquire);
  if (source.python_code != nullptr && describe_line != nullptr) {
    text += ", submitted at " + describe_line(source.python_code, source.python_lasti);
  }
  return text;
}

Stream::Stream(c10::DeviceIndex device, c10::StreamId id, int priority)
    : device_(device), id_(id), priority_(priority), ring_(kRingSize) {}

c10::Stream Stream::unwrap() const noexcept {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device_), id_);
}

// ---- submitting -----------------------------------------------------------------------------------------------------

Stream::Submission::Submission(Stream& stream) : stream_(stream) {
  config::ensure_started();
  const auto me = std::this_thread::get_id();
  if (stream.submit_owner_.load(std::memory_order_relaxed) != me) {
    if (!stream.submit_mutex_.try_lock()) {
      // The holder may need the GIL (to keep the user's line of an allocation), so it must not be held while waiting.
      without_gil([&] { stream.submit_mutex_.lock(); });
    }
    stream.submit_owner_.store(me, std::memory_order_relaxed);
  }
  ++stream.submit_depth_;
}

Stream::Submission::~Submission() {
  if (--stream_.submit_depth_ == 0) {
    stream_.submit_owner_.store(std::thread::id{}, std::memory_order_relaxed);
    stream_.submit_mutex_.unlock();
  }
}

void Stream::Submission::drain() {
  stream_.wait(stream_.submitted());
}

Stream::Slot& Stream::acquire(Submission&) {
  const uint64_t seq = submitted_.load(std::memory_order_relaxed) + 1;
  if (seq > kRingSize && completed() < seq - kRingSize) {
    wait(seq - kRingSize + kRingRefill);
  }
  Slot& slot = ring_[seq % kRingSize];
  slot.source = LaunchSource{};
  return slot;
}

uint64_t Stream::publish(Submission&) {
  const uint64_t seq = submitted_.load(std::memory_order_relaxed) + 1;
  Slot& slot = ring_[seq % kRingSize];
  slot.enqueue_time = trace::enabled() ? trace::now_ticks() : 0;
  if (config::get().launch_blocking || stopping_.load(std::memory_order_relaxed)) {
    // Blocking mode: what ran ahead on other streams is finished by their own publish calls, so this one is next.
    run_slot(slot, seq);
    submitted_.store(seq, std::memory_order_release);
    finish(seq);
    raise_pending_error();
    return seq;
  }
  ensure_executor();
  // Sequentially consistent with `sleeping_`: either we see that the executor sleeps, or it sees the new launch.
  submitted_.store(seq, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_.notify_one();
  }
  return seq;
}

uint64_t Stream::submit(std::unique_ptr<LaunchPayload> launch, LaunchSource source) {
  Submission submission(*this);
  Slot& slot = acquire(submission);
  slot.source = source;
  slot.single = std::move(launch);
  slot.active = slot.single.get();
  return publish(submission);
}

uint64_t Stream::submit(std::function<void()> fn, LaunchSource source) {
  return submit(std::make_unique<FunctionLaunch>(std::move(fn)), source);
}

// ---- the executor ---------------------------------------------------------------------------------------------------

void Stream::ensure_executor() {
  if (C10_LIKELY(executor_.joinable())) {
    return;
  }
  executor_ = std::thread([this] { executor_main(); });
}

void Stream::executor_main() {
  t_executed = this;
  block_signals();
  const std::string name = "neuron:" + std::to_string(device_) + "/" + std::to_string(id_);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  // Launches run below autograd and autocast, whatever the thread that submitted them had switched on.
  c10::AutoGradMode no_grad(false);
  c10::impl::ExcludeDispatchKeyGuard below_autograd(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);

  uint64_t seq = completed_.load(std::memory_order_relaxed) + 1;
  while (true) {
    const auto has_work = [&] {
      return submitted_.load(std::memory_order_seq_cst) >= seq || stopping_.load(std::memory_order_seq_cst);
    };
    if (!has_work() && !spin_until(has_work, kExecutorSpin)) {
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      sleeping_.store(true, std::memory_order_seq_cst);
      wake_.wait(lock, has_work);
      sleeping_.store(false, std::memory_order_seq_cst);
    }
    if (submitted_.load(std::memory_order_acquire) < seq) {
      return; // stopping, and everything is done
    }
    seq = run_from(seq);
    finish(seq);
    ++seq;
  }
}

uint64_t Stream::run_from(uint64_t seq) noexcept {
  class Behind final : public QueuedLaunches {
   public:
    Behind(Stream& stream, uint64_t seq) : stream_(stream), seq_(seq) {}
    size_t size() const noexcept override { return static_cast<size_t>(stream_.submitted() - seq_); }
    LaunchPayload& operator[](size_t index) const noexcept override { return *slot(index + 1).active; }
    const LaunchSource& source(size_t index) const noexcept override { return slot(index + 1).source; }
    const LaunchSource& first_source() const noexcept override { return slot(0).source; }

   private:
    const Slot& slot(size_t behind) const noexcept { return stream_.ring_[(seq_ + behind) % kRingSize]; }

    Stream& stream_;
    uint64_t seq_;
  };

  Slot& slot = ring_[seq % kRingSize];
  const int64_t started = trace::enabled() ? trace::now_ticks() : 0;
  size_t along = 0;
  try {
    along = slot.active->run_with(Behind(*this, seq));
  } catch (...) {
    late_error_.keep(std::make_shared<LateError>(std::current_exception(), slot.source, unwrap().device()), seq);
  }
  const int64_t ended = started != 0 ? trace::now_ticks() : 0;
  // Launches that ran together have no time of their own: each gets an equal part.
  const auto launches = static_cast<int64_t>(along) + 1;
  for (int64_t i = 0; i < launches; ++i) {
    RunTime time;
    if (started != 0) {
      time.started = started + (ended - started) * i / launches;
      time.ended = started + (ended - started) * (i + 1) / launches;
      time.region = along == 0 ? 0 : std::max(uint32_t{1}, static_cast<uint32_t>(seq));
    }
    retire(ring_[(seq + static_cast<uint64_t>(i)) % kRingSize], time);
  }
  return seq + along;
}

void Stream::run_slot(Slot& slot, uint64_t seq) noexcept {
  const int64_t started = trace::enabled() ? trace::now_ticks() : 0;
  try {
    slot.active->run();
  } catch (...) {
    late_error_.keep(std::make_shared<LateError>(std::current_exception(), slot.source, unwrap().device()), seq);
  }
  retire(slot, {started, started != 0 ? trace::now_ticks() : 0, 0});
}

void Stream::retire(Slot& slot, const RunTime& time) noexcept {
  slot.active->release();
  if (time.started != 0) {
    trace::Record entry;
    entry.name = slot.source.name;
    entry.signature = slot.source.signature;
    entry.correlation = slot.source.correlation;
    entry.enqueued = slot.enqueue_time;
    entry.started = time.started;
    entry.ended = time.ended;
    entry.region = time.region;
    entry.device = device_;
    entry.stream = static_cast<int32_t>(id_);
    entry.inline_run = on_executor_thread() ? 0 : 1;
    trace::append(entry);
  }
  slot.active = nullptr;
  slot.single.reset();
}

void Stream::finish(uint64_t seq) noexcept {
  // Sequentially consistent with `waiters_`: either we see the waiter, or it sees that the launch is done.
  completed_.store(seq, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    done_.notify_all();
  }
}

void Stream::stop() noexcept {
  if (config::in_bad_fork()) {
    return;
  }
  // The submit lock is held to the end: a launch that another thread submits now must not run ahead of those before it.
  // Nor may that thread start an executor later, so this matters for a stream that has none, too.
  std::lock_guard<std::mutex> submit_lock(submit_mutex_);
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    stopping_.store(true, std::memory_order_seq_cst);
    wake_.notify_one();
  }
  if (executor_.joinable()) {
    executor_.join();
  }
}

// ---- waiting --------------------------------------------------------------------------------------------------------

void Stream::wait(uint64_t seq) {
  if (completed() >= seq) {
    return;
  }
  config::ensure_started();
  TORCH_INTERNAL_ASSERT(t_executed != this, "a launch waits for its own stream");
  const auto is_done = [&] { return completed_.load(std::memory_order_seq_cst) >= seq; };
  if (spin_until(is_done, kWaiterSpin)) {
    return;
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  {
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    done_.wait(lock, is_done);
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

void Stream::synchronize() {
  if (config::in_bad_fork()) {
    config::ensure_started(); // raises
  }
  wait(submitted());
  raise_pending_error();
}

void Stream::wait_stream(Stream& other) {
  wait_launch(other, other.submitted(), "neuron::wait_stream");
}

void Stream::wait_launch(Stream& other, uint64_t seq, const char* name) {
  if (&other == this) {
    return;
  }
  if (other.completed() >= seq) {
    late_error_.inherit(other.late_error_, seq, submitted());
    return;
  }
  LaunchSource source;
  source.name = name;
  submit(
      [this, &other, seq] {
        other.wait(seq);
        late_error_.inherit(other.late_error_, seq, completed() + 1);
      },
      source);
}

} // namespace neuron
