// Random numbers: a counter-based generator whose whole state is {seed, offset}, in cuda's layout.
//
// A random op reserves its part of the counter at the call, in program order. What it draws depends on that pair only,
// so asynchronous, fused and replayed runs agree.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace neuron {

struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0; // a multiple of 4
};

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  enum class Role : uint8_t { OfUser, OfDevice };
  explicit NeuronGenerator(c10::DeviceIndex index, Role role = Role::OfUser);

  // Returns the state to draw from and advances the offset by `increment`, rounded up to a multiple of 4. Atomic, and
  // callable with or without GeneratorImpl::mutex_ held.
  PhiloxState reserve(uint64_t increment);
  // What random ops draw from instead in host-RNG mode: a CPU generator with the same seed. For the device's own
  // generator it is the default CPU generator.
  at::Generator host() const;

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  // 16 bytes on the CPU: uint64 seed, int64 offset. The offset may be left out and is 0 then. In host-RNG mode a user's
  // generator gives the state of its host generator, which it takes at any time.
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // Makes both generators share one state.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // at::check_generator asks for it.
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

 private:
  struct SharedState {
    std::mutex mutex;
    PhiloxState philox;
    at::Generator host; // made when it is first drawn from
  };
  NeuronGenerator(c10::DeviceIndex index, Role role, std::shared_ptr<SharedState> state);
  NeuronGenerator* clone_impl() const override;
  PhiloxState read() const;
  void write(PhiloxState philox, at::Generator host);

  const Role role_;
  std::shared_ptr<SharedState> state_;
};

// The device's own generator, seeded at random until someone sets a seed. index -1 means the current device; throws
// when there is no such device.
const at::Generator& default_generator(c10::DeviceIndex index);
// One of a user's, with PyTorch's default seed. `index` as above.
at::Generator make_generator(c10::DeviceIndex index);
// Seeds the default generators of all devices, those included that have not been made yet; needs no device.
void seed_default_generators(uint64_t seed);

// In host-RNG mode random ops draw exactly what they would draw on the CPU at that point of the program: from the
// default CPU generator, or from one seeded like the generator they are given.
// Starts as TORCH_NEURONX_HOST_RNG says.
bool host_rng() noexcept;
void set_host_rng(bool enabled) noexcept;

} // namespace neuron
