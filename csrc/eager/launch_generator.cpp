#include "eager/launch_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

namespace neuron::eager {

namespace {

uint64_t splitmix64(uint64_t& x) noexcept {
  uint64_t z = (x += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

thread_local PhiloxState t_launch_state;

NeuronGenerator& checked(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == c10::DeviceType::PrivateUse1,
      "Expected a 'neuron' device type for generator but found '", generator.device().type(), "'");
  return *static_cast<NeuronGenerator*>(generator.unsafeGetGeneratorImpl());
}

at::Generator generator_at(const PhiloxState& state) {
  thread_local at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
  // mt19937's own seeding keeps 32 bits, which a long training run would exhaust: fill the whole state instead.
  at::mt19937_data_pod data;
  uint64_t x = state.seed;
  uint64_t key = splitmix64(x) ^ state.offset;
  data.seed_ = state.seed;
  data.left_ = 1; // the first draw makes a new block of numbers from the state
  data.seeded_ = true;
  data.next_ = 0;
  for (size_t i = 0; i < data.state_.size(); i += 2) {
    const uint64_t word = splitmix64(key);
    data.state_[i] = static_cast<uint32_t>(word);
    data.state_[i + 1] = static_cast<uint32_t>(word >> 32);
  }
  data.state_[0] |= 0x80000000u; // the all-zero state is the only bad one
  at::mt19937 engine;
  engine.set_data(data);
  auto* const impl = generator.get<at::CPUGeneratorImpl>();
  impl->set_engine(engine);
  impl->set_next_float_normal_sample(std::nullopt);
  impl->set_next_double_normal_sample(std::nullopt);
  return generator;
}

} // namespace

at::Generator launch_generator(const PhiloxState& state) {
  t_launch_state = state;
  return generator_at(state);
}

at::Generator nth_launch_generator(uint32_t n) {
  return generator_at({t_launch_state.seed, t_launch_state.offset + n * kOffsetPerLaunch});
}

PhiloxState reserve_for_launch(const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint32_t draws) {
  const at::Generator& chosen = generator.has_value() && generator->defined() ? *generator : default_generator(device);
  return checked(chosen).reserve(kOffsetPerLaunch * draws);
}

at::Generator host_generator(const at::Generator& generator) {
  return checked(generator).host();
}

} // namespace neuron::eager
