// Many threads submit to, wait for and order a few streams. What launches touch is plain memory, without atomics: a
// sanitizer reports it when the order that streams and events promise is not kept.
#include "stress.h"

#include "stream/event.h"
#include "stream/stream.h"
#include "stream/stream_pool.h"
#include "trace/ring.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

using neuron::Event;
using neuron::LaunchSource;
using neuron::Stream;

namespace {

constexpr int kThreads = 4;
constexpr int kStreams = 3;
constexpr int kRounds = 4000;      // of each thread
constexpr int kErrorRounds = 1500; // of each thread

// Written by the launches of one stream only.
struct Counted {
  Stream* stream = nullptr;
  uint64_t launches = 0;
  std::atomic<uint64_t> submitted{0};
};

LaunchSource named(const char* name) {
  LaunchSource source;
  source.name = name;
  return source;
}

void count_launch(Counted& counted) {
  counted.submitted.fetch_add(1);
  counted.stream->submit([&counted] { ++counted.launches; }, named("count"));
}

// On the calling thread, as the eager layer does with short kernels.
void count_inline(Counted& counted) {
  Stream::Submission submission(*counted.stream);
  submission.drain();
  counted.submitted.fetch_add(1);
  ++counted.launches;
}

// A launch of one stream writes, one of another reads: `order` puts the second behind the first.
template <class Order>
void hand_over(Stream& writer, Stream& reader, const Order& order) {
  auto value = std::make_shared<int>(0);
  writer.submit([value] { *value = 1; }, named("write"));
  order();
  reader.submit([value] { stress::check(*value == 1, "the reader runs after the writer"); }, named("read"));
}

void work(int thread, std::array<Counted, kStreams>& streams, std::array<Event, 2>& events) {
  std::mt19937 random(static_cast<unsigned>(thread));
  for (int round = 0; round < kRounds; ++round) {
    Counted& counted = streams[random() % kStreams];
    Stream& stream = *counted.stream;
    Stream& other = *streams[random() % kStreams].stream;
    Event& shared = events[random() % events.size()];
    switch (random() % 12) {
      case 0:
        stream.synchronize();
        break;
      case 1:
        stream.wait(stream.submitted());
        break;
      case 2:
        hand_over(stream, other, [&] { other.wait_stream(stream); });
        break;
      case 3:
        hand_over(stream, other, [&] {
          Event event(/*enable_timing=*/round % 2 == 0);
          event.record(stream);
          event.block(other);
        });
        break;
      case 4: { // the host reads what a launch wrote
        auto value = std::make_shared<int>(0);
        Event event(false);
        stream.submit([value] { *value = 1; }, named("write"));
        event.record(stream);
        event.synchronize();
        stress::check(event.query() && *value == 1, "a synchronized event has passed what was submitted before it");
        break;
      }
      case 5: // events that other threads record, wait for and ask at the same time
        shared.record(stream);
        break;
      case 6:
        shared.block(stream);
        shared.synchronize();
        break;
      case 7:
        shared.query();
        break;
      case 8:
        count_inline(counted);
        break;
      default:
        count_launch(counted);
    }
  }
}

void submit_wait_and_order() {
  std::array<Counted, kStreams> streams;
  streams[0].stream = &neuron::default_stream(0);
  streams[1].stream = &neuron::new_stream(0);
  streams[2].stream = &neuron::default_stream(1);
  std::array<Event, 2> events{Event(true), Event(false)};
  neuron::trace::Reader reader(1 << 12);
  stress::in_threads(kThreads, [&](int thread) { work(thread, streams, events); });
  neuron::synchronize_device(0);
  neuron::synchronize_device(1);
  for (const Counted& counted : streams) {
    stress::check(counted.launches == counted.submitted.load(), "every launch ran once");
  }
  stress::check(!reader.take().empty(), "launches are traced");
}

// Launches fail while streams wait for each other; each error is raised at most once, in one thread.
void fail() {
  std::array<Stream*, kStreams> streams{&neuron::default_stream(0), &neuron::new_stream(0), &neuron::default_stream(1)};
  std::array<std::atomic<int>, kThreads * kErrorRounds> raised{};
  stress::in_threads(kThreads, [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    const auto expect_error = [&](const auto& waits) {
      try {
        waits();
      } catch (const std::exception& error) {
        raised[static_cast<size_t>(std::atoi(error.what()))].fetch_add(1);
      }
    };
    for (int round = 0; round < kErrorRounds; ++round) {
      Stream& stream = *streams[random() % kStreams];
      Stream& other = *streams[random() % kStreams];
      switch (random() % 3) {
        case 0: {
          const std::string number = std::to_string(thread * kErrorRounds + round);
          stream.submit([number] { throw std::runtime_error(number + " failed"); }, named("fail"));
          break;
        }
        case 1:
          other.wait_stream(stream);
          break;
        default:
          expect_error([&] { stream.synchronize(); });
      }
    }
    for (Stream* stream : streams) {
      expect_error([&] { stream->synchronize(); });
    }
  });
  int total = 0;
  for (const auto& times : raised) {
    stress::check(times.load() <= 1, "an error is raised once");
    total += times.load();
  }
  stress::check(total > 0, "errors are raised");
}

// The process ends while threads go on: what they submit from then on runs on their own threads, after all before it.
void stop() {
  std::array<Counted, kStreams> streams;
  for (Counted& counted : streams) {
    counted.stream = &neuron::new_stream(0); // the last has no executor when it is stopped
  }
  std::atomic<bool> go_on{true};
  std::atomic<int> running{0};
  std::thread stopper([&] {
    while (running.load() < kThreads) {
      std::this_thread::yield();
    }
    neuron::stop_all_streams();
    go_on.store(false);
  });
  stress::in_threads(kThreads, [&](int thread) {
    for (int round = 0; round < 200 || go_on.load(); ++round) {
      count_launch(streams[static_cast<size_t>(thread) % (kStreams - 1)]);
      if (round == 100) {
        running.fetch_add(1);
      }
    }
    count_launch(streams[kStreams - 1]);
  });
  stopper.join();
  neuron::synchronize_device(0);
  for (const Counted& counted : streams) {
    stress::check(counted.launches == counted.submitted.load(), "every launch ran once, also at the end");
  }
}

} // namespace

int main() {
  stress::use_devices(2, size_t{1} << 30);
  submit_wait_and_order();
  fail();
  stop();
  return 0;
}
