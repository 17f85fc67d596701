#include "device/generator.h"

#include "device/config.h"
#include "device/current.h"
#include "device/environment.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

namespace neuron {

namespace {

constexpr uint64_t kOffsetUnit = 4; // philox gives four numbers a counter step
constexpr size_t kSeedBytes = sizeof(uint64_t);
constexpr size_t kStateBytes = kSeedBytes + sizeof(int64_t);

struct DefaultGenerators {
  std::mutex mutex;
  std::optional<uint64_t> seed; // what seed_default_generators asked for
  std::array<at::Generator, config::kMaxDevices + 1> generators;
};

// Never destroyed: Python holds generators until the very end.
DefaultGenerators& defaults() {
  static auto* const all = new DefaultGenerators();
  return *all;
}

std::atomic<bool>& host_rng_flag() noexcept {
  static std::atomic<bool> flag{switch_is_on("TORCH_NEURONX_HOST_RNG")};
  return flag;
}

c10::DeviceIndex index_or_current(c10::DeviceIndex index) {
  if (index == -1) {
    return current_device();
  }
  config::check_device_index(index);
  return index;
}

at::Generator make_host_generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

size_t host_state_bytes() {
  static const auto bytes = static_cast<size_t>(make_host_generator(0).unsafeGetGeneratorImpl()->get_state()->numel());
  return bytes;
}

} // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex index, Role role)
    : NeuronGenerator(index, role, std::make_shared<SharedState>()) {
  state_->philox.seed = c10::default_rng_seed_val;
}

NeuronGenerator::NeuronGenerator(c10::DeviceIndex index, Role role, std::shared_ptr<SharedState> state)
    : c10::GeneratorImpl(
          c10::Device(c10::DeviceType::PrivateUse1, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      role_(role),
      state_(std::move(state)) {}

PhiloxState NeuronGenerator::reserve(uint64_t increment) {
  const uint64_t step = (increment + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  std::lock_guard<std::mutex> lock(state_->mutex);
  const PhiloxState reserved = state_->philox;
  state_->philox.offset += step;
  return reserved;
}

at::Generator NeuronGenerator::host() const {
  if (role_ == Role::OfDevice) {
    return at::detail::getDefaultCPUGenerator();
  }
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->host.defined()) {
    state_->host = make_host_generator(state_->philox.seed);
  }
  return state_->host;
}

PhiloxState NeuronGenerator::read() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->philox;
}

void NeuronGenerator::write(PhiloxState philox, at::Generator host) {
  TORCH_CHECK(philox.offset % kOffsetUnit == 0, "offset must be a multiple of 4, got ", philox.offset);
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->philox = philox;
  state_->host = std::move(host);
}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  write({seed, 0}, {});
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % kOffsetUnit == 0, "offset must be a multiple of 4, got ", offset);
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->philox.offset = offset;
}

uint64_t NeuronGenerator::get_offset() const {
  return read().offset;
}

uint64_t NeuronGenerator::current_seed() const {
  return read().seed;
}

uint64_t NeuronGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(/*is_cuda=*/true);
  set_current_seed(random);
  return random;
}

void NeuronGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  const auto bytes = static_cast<size_t>(new_state.numel());
  if (role_ == Role::OfUser && bytes == host_state_bytes()) {
    at::Generator host = make_host_generator(0);
    host.unsafeGetGeneratorImpl()->set_state(new_state);
    const PhiloxState philox{host.current_seed(), 0};
    write(philox, std::move(host));
    return;
  }
  TORCH_CHECK(
      bytes == kStateBytes || bytes == kSeedBytes, "RNG state is wrong size: expected ", kStateBytes, " bytes, got ",
      bytes);
  const auto* data = new_state.data_dtype_initialized<uint8_t>();
  PhiloxState philox;
  std::memcpy(&philox.seed, data, kSeedBytes);
  if (bytes == kStateBytes) {
    std::memcpy(&philox.offset, data + kSeedBytes, sizeof(philox.offset));
  }
  // The host generator has no offset: only its beginning can be found again.
  TORCH_CHECK(
      philox.offset == 0 || role_ == Role::OfDevice || !host_rng(),
      "this RNG state was taken outside of host-RNG mode, and cannot be continued in it");
  write(philox, {});
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  if (role_ == Role::OfUser && host_rng()) {
    at::Generator generator = host();
    std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.unsafeGetGeneratorImpl()->get_state();
  }
  const PhiloxState philox = read();
  auto state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, c10::ScalarType::Byte);
  auto* data = static_cast<uint8_t*>(state.unsafeGetTensorImpl()->mutable_data());
  std::memcpy(data, &philox.seed, kSeedBytes);
  std::memcpy(data + kSeedBytes, &philox.offset, sizeof(philox.offset));
  return state.getIntrusivePtr();
}

void NeuronGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  auto* neuron = dynamic_cast<NeuronGenerator*>(other.get());
  TORCH_CHECK(neuron != nullptr, "expected the state of a neuron generator");
  state_ = neuron->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> NeuronGenerator::graphsafe_get_state() const {
  return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(new NeuronGenerator(device_.index(), role_, state_));
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto copy = std::make_shared<SharedState>();
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    copy->philox = state_->philox;
    if (state_->host.defined()) {
      std::lock_guard<std::mutex> host_lock(state_->host.mutex());
      copy->host = state_->host.clone();
    }
  }
  return new NeuronGenerator(device_.index(), Role::OfUser, std::move(copy));
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  index = index_or_current(index);
  DefaultGenerators& all = defaults();
  std::lock_guard<std::mutex> lock(all.mutex);
  at::Generator& generator = all.generators[static_cast<size_t>(index)];
  if (!generator.defined()) {
    generator = at::make_generator<NeuronGenerator>(index, NeuronGenerator::Role::OfDevice);
    generator.set_current_seed(
        all.seed.has_value() ? *all.seed : c10::detail::getNonDeterministicRandom(/*is_cuda=*/true));
  }
  return generator;
}

at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<NeuronGenerator>(index_or_current(index));
}

void seed_default_generators(uint64_t seed) {
  DefaultGenerators& all = defaults();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.seed = seed;
  for (at::Generator& generator : all.generators) {
    if (generator.defined()) {
      generator.set_current_seed(seed);
    }
  }
}

bool host_rng() noexcept {
  return host_rng_flag().load(std::memory_order_relaxed);
}

void set_host_rng(bool enabled) noexcept {
  host_rng_flag().store(enabled, std::memory_order_relaxed);
}

} // namespace neuron
