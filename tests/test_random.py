"""Generators, seeds and states of the neuron device."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

neuron = torch.neuron


@pytest.fixture(autouse=True)
def known_state():
    neuron.set_device(0)
    torch.manual_seed(1234)
    yield
    neuron.set_device(0)


def draw(*shape: int, device: str = "neuron", **kwargs: object) -> list[float]:
    return torch.randn(*shape, device=device, **kwargs).cpu().flatten().tolist()


def test_same_seed_same_numbers() -> None:
    torch.manual_seed(7)
    first = draw(100)
    second = draw(100)
    assert first != second
    torch.manual_seed(7)
    assert draw(100) == first
    assert draw(100) == second
    torch.manual_seed(8)
    assert draw(100) != first


def test_manual_seed_is_for_the_current_device() -> None:
    neuron.manual_seed_all(1)
    with neuron.device(1):
        neuron.manual_seed(2)
    assert [generator.initial_seed() for generator in neuron.default_generators] == [1, 2, 1, 1]
    with neuron.device(1):
        assert neuron.initial_seed() == 2
    assert neuron.initial_seed() == 1


def test_torch_manual_seed_reaches_all_devices() -> None:
    torch.manual_seed(99)
    assert [generator.initial_seed() for generator in neuron.default_generators] == [99] * 4


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1, -1])
def test_large_and_negative_seeds(seed: int) -> None:
    expected = seed % 2**64
    torch.manual_seed(seed)
    assert neuron.initial_seed() == expected
    neuron.manual_seed(seed)
    assert neuron.initial_seed() == expected
    assert torch.Generator("neuron").manual_seed(seed).initial_seed() == expected


def test_seeds_that_differ_from_run_to_run() -> None:
    neuron.seed()
    first = neuron.initial_seed()
    neuron.seed()
    assert neuron.initial_seed() != first
    neuron.seed_all()
    seeds = {generator.initial_seed() for generator in neuron.default_generators}
    assert len(seeds) == 1


def test_state_is_seed_and_offset() -> None:
    neuron.manual_seed(2**40 + 3)
    state = neuron.get_rng_state()
    assert (state.dtype, state.device.type, state.shape) == (torch.uint8, "cpu", (16,))
    assert struct.unpack("=Qq", bytes(state.tolist())) == (2**40 + 3, 0)
    draw(10)
    seed, offset = struct.unpack("=Qq", bytes(neuron.get_rng_state().tolist()))
    assert seed == 2**40 + 3
    assert offset > 0
    assert offset % 4 == 0


def test_state_can_be_restored() -> None:
    draw(3)
    state = neuron.get_rng_state()
    first = draw(50)
    neuron.set_rng_state(state)
    assert draw(50) == first
    neuron.set_rng_state(pickle.loads(pickle.dumps(state)), "neuron:0")
    assert draw(50) == first


def test_state_belongs_to_a_device() -> None:
    state = neuron.get_rng_state(2)
    draw(3, device="neuron:1")
    assert torch.equal(neuron.get_rng_state("neuron:2"), state)
    neuron.set_rng_state(state, 1)
    assert torch.equal(neuron.get_rng_state(1), state)
    with neuron.device(2):
        assert torch.equal(neuron.get_rng_state(), state)


def test_states_of_all_devices() -> None:
    for index in range(4):
        with neuron.device(index):
            neuron.manual_seed(index)
    states = neuron.get_rng_state_all()
    neuron.manual_seed_all(50)
    neuron.set_rng_state_all(states)
    assert [generator.initial_seed() for generator in neuron.default_generators] == [0, 1, 2, 3]


def test_bad_states() -> None:
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        neuron.set_rng_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(TypeError, match="RNG state must be a torch.ByteTensor"):
        neuron.set_rng_state(torch.zeros(16))
    odd = torch.tensor(list(struct.pack("=Qq", 1, 6)), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        neuron.set_rng_state(odd)
    with pytest.raises(RuntimeError, match="invalid neuron device index"):
        neuron.get_rng_state(17)


def test_state_without_offset() -> None:
    # cuda's older states have the seed only.
    neuron.set_rng_state(torch.tensor(list(struct.pack("=Q", 77)), dtype=torch.uint8))
    assert (neuron.initial_seed(), neuron.default_generators[0].get_offset()) == (77, 0)


@pytest.mark.parametrize("device", ["neuron", "neuron:0", "neuron:2", torch.device("neuron", 2)])
def test_generator(device: object) -> None:
    generator = torch.Generator(device)
    where = torch.device(device)
    assert generator.device == torch.device("neuron", where.index or 0)
    assert generator.initial_seed() == 67280421310721  # PyTorch's default for generators of any device
    generator.manual_seed(5)
    first = draw(20, device=str(where), generator=generator)
    assert draw(20, device=str(where), generator=generator) != first
    generator.manual_seed(5)
    assert draw(20, device=str(where), generator=generator) == first


def test_generator_of_its_own_leaves_the_default_one_alone() -> None:
    state = neuron.get_rng_state()
    draw(20, generator=torch.Generator("neuron"))
    assert torch.equal(neuron.get_rng_state(), state)


def test_same_state_same_numbers_from_any_generator() -> None:
    generator = torch.Generator("neuron")
    generator.set_state(neuron.get_rng_state())
    assert draw(30, generator=generator) == draw(30)


def test_generator_on_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'neuron"):
        torch.randn(3, device="neuron", generator=torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match="device"):
        torch.randn(3, generator=torch.Generator("neuron"))


def test_generator_offset_and_clone() -> None:
    generator = torch.Generator("neuron").manual_seed(3)
    assert generator.get_offset() == 0
    draw(5, generator=generator)
    moved = generator.get_offset()
    assert moved > 0
    copy = generator.clone_state()
    assert (copy.initial_seed(), copy.get_offset()) == (3, moved)
    draw(5, generator=generator)
    assert copy.get_offset() == moved
    generator.set_offset(8)
    assert generator.get_offset() == 8
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)


def test_graphsafe_state_is_shared() -> None:
    generator = torch.Generator("neuron").manual_seed(3)
    shared = generator.graphsafe_get_state()
    draw(5, generator=generator)
    assert shared.get_offset() == generator.get_offset() > 0
    other = torch.Generator("neuron")
    other.graphsafe_set_state(shared)
    assert (other.initial_seed(), other.get_offset()) == (3, generator.get_offset())


def test_reserve_counts_in_fours_and_in_order() -> None:
    from torch_neuronx import _C

    generator = torch.Generator("neuron").manual_seed(11)
    assert [_C.reserve_random(generator, n) for n in (1, 4, 5, 0)] == [(11, 0), (11, 4), (11, 8), (11, 16)]
    with pytest.raises(RuntimeError, match="Expected a 'neuron"):
        _C.reserve_random(torch.Generator("cpu"), 4)


def test_numbers_depend_on_the_offset_only() -> None:
    # What other ops did in between, and on which stream, does not matter.
    generator = torch.Generator("neuron").manual_seed(3)
    torch.randn(10, device="neuron", generator=generator)
    offset = generator.get_offset()
    expected = draw(10, generator=generator)
    for _ in range(3):
        torch.randn(1000, device="neuron")
    other = torch.Generator("neuron").manual_seed(3)
    other.set_offset(offset)
    stream = neuron.Stream()
    with neuron.stream(stream):
        again = draw(10, generator=other)
    assert again == expected


@pytest.mark.parametrize(
    ("make", "mean", "std"),
    [
        (lambda g: torch.rand(20000, device="neuron", generator=g), 0.5, 12**-0.5),
        (lambda g: torch.randn(20000, device="neuron", generator=g), 0.0, 1.0),
        (lambda g: torch.randint(0, 10, (20000,), device="neuron", generator=g).float(), 4.5, 8.25**0.5),
        (lambda g: torch.empty(20000, device="neuron").exponential_(2.0, generator=g), 0.5, 0.5),
        (lambda g: torch.bernoulli(torch.full((20000,), 0.25, device="neuron"), generator=g), 0.25, 0.4330),
        (lambda g: torch.normal(2.0, 3.0, (20000,), device="neuron", generator=g), 2.0, 3.0),
        (lambda g: torch.randperm(20000, device="neuron", generator=g).float() / 20000, 0.5, 12**-0.5),
    ],
)
def test_distributions(make: object, mean: float, std: float) -> None:
    x = make(torch.Generator("neuron").manual_seed(0)).cpu()
    assert x.mean().item() == pytest.approx(mean, abs=5 * std / 20000**0.5)
    assert x.std().item() == pytest.approx(std, rel=0.05)


def test_successive_draws_are_independent() -> None:
    x, y = torch.randn(20000, device="neuron"), torch.randn(20000, device="neuron")
    assert abs(torch.corrcoef(torch.stack([x, y]).cpu())[0, 1].item()) < 0.04


def test_fork_rng() -> None:
    state = neuron.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        inside = draw(10)
    assert torch.equal(neuron.get_rng_state(), state)
    assert draw(10) == inside
    with torch.random.fork_rng(devices=["neuron:1"], device_type="neuron"):
        draw(3, device="neuron:1")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_repeats_dropout(use_reentrant: bool) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 16)).to("neuron")
    x = torch.randn(8, 16, device="neuron", requires_grad=True)
    gradients = []
    for run in (lambda: net(x), lambda: checkpoint(net, x, use_reentrant=use_reentrant)):
        torch.manual_seed(3)
        net.zero_grad()
        x.grad = None
        out = run()
        torch.randn(5, device="neuron")  # moves the generator between forward and backward
        out.square().sum().backward()
        gradients.append([out.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in net.parameters())])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.equal(plain, checkpointed)


def test_checkpoint_restores_the_state_of_the_device() -> None:
    x = torch.ones(4, device="neuron", requires_grad=True)
    out = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    state = neuron.get_rng_state()
    out.sum().backward()
    assert torch.equal(neuron.get_rng_state(), state)


# Every way to draw from a generator that is given.
DRAWS: dict[str, Callable[[str, torch.Generator], torch.Tensor]] = {
    "rand": lambda d, g: torch.rand(5, 7, device=d, generator=g),
    "randn": lambda d, g: torch.randn(33, device=d, generator=g),
    "randn of double": lambda d, g: torch.randn(5, device=d, generator=g, dtype=torch.float64),
    "randint": lambda d, g: torch.randint(-5, 1000, (9,), device=d, generator=g),
    "randint, 64 bits": lambda d, g: torch.randint(0, 2**40, (9,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(41, device=d, generator=g),
    "normal": lambda d, g: torch.normal(1.0, 2.0, (9,), device=d, generator=g),
    "normal of tensors": lambda d, g: torch.normal(
        torch.ones(9, device=d), torch.full((9,), 2.0, device=d), generator=g
    ),
    "normal_": lambda d, g: torch.empty(20, device=d).normal_(generator=g),
    "normal_ of bfloat16": lambda d, g: torch.empty(20, device=d, dtype=torch.bfloat16).normal_(generator=g),
    "uniform_": lambda d, g: torch.empty(8, device=d).uniform_(-1, 1, generator=g),
    "random_": lambda d, g: torch.empty(8, device=d, dtype=torch.int64).random_(generator=g),
    "random_ below": lambda d, g: torch.empty(8, device=d, dtype=torch.int32).random_(100, generator=g),
    "exponential_": lambda d, g: torch.empty(8, device=d).exponential_(generator=g),
    "geometric_": lambda d, g: torch.empty(8, device=d).geometric_(0.3, generator=g),
    "cauchy_": lambda d, g: torch.empty(8, device=d).cauchy_(generator=g),
    "log_normal_": lambda d, g: torch.empty(8, device=d).log_normal_(generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((40,), 0.5, device=d), generator=g),
    "bernoulli_": lambda d, g: torch.empty(40, device=d).bernoulli_(0.3, generator=g),
    "bernoulli_ of a tensor": lambda d, g: torch.empty(9, device=d).bernoulli_(
        torch.full((9,), 0.5, device=d), generator=g
    ),
    "a dropout mask": lambda d, g: (
        torch.ones(64, device=d) * torch.empty(64, device=d).bernoulli_(0.7, generator=g) / 0.7
    ),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(10, device=d), 5, generator=g),
    "multinomial with replacement": lambda d, g: torch.multinomial(torch.ones(10, device=d), 15, True, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((9,), 3.0, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(
        torch.full((9,), 8.0, device=d), torch.full((9,), 0.4, device=d), generator=g
    ),
    "trunc_normal_": lambda d, g: torch.nn.init.trunc_normal_(torch.empty(50, device=d), generator=g),
    "kaiming_uniform_": lambda d, g: torch.nn.init.kaiming_uniform_(torch.empty(6, 6, device=d), generator=g),
    "orthogonal_": lambda d, g: torch.nn.init.orthogonal_(torch.empty(6, 6, device=d), generator=g),
}


class TestHostRng:
    """Host-RNG mode draws what the CPU generator would draw."""

    def test_switch(self) -> None:
        assert not neuron.is_host_rng_enabled()
        with neuron.host_rng(True):
            assert neuron.is_host_rng_enabled()
            with neuron.host_rng(False):
                assert not neuron.is_host_rng_enabled()
            assert neuron.is_host_rng_enabled()
        assert not neuron.is_host_rng_enabled()
        neuron.host_rng(True)
        assert neuron.is_host_rng_enabled()
        neuron.host_rng(False)
        assert not neuron.is_host_rng_enabled()

    def test_restored_after_an_error(self) -> None:
        with pytest.raises(KeyError), neuron.host_rng(True):
            raise KeyError
        assert not neuron.is_host_rng_enabled()

    @pytest.mark.parametrize(
        "make",
        [
            lambda device: torch.randn(33, device=device),
            lambda device: torch.rand(5, 7, device=device),
            lambda device: torch.randint(0, 100, (9,), device=device),
            lambda device: torch.randperm(12, device=device),
            lambda device: torch.empty(8, device=device).uniform_(-1, 1),
            lambda device: torch.nn.init.kaiming_uniform_(torch.empty(6, 6, device=device)),
            lambda device: torch.nn.init.trunc_normal_(torch.empty(50, device=device)),
            lambda device: torch.nn.functional.dropout(torch.ones(64, device=device), 0.3),
            lambda device: torch.bernoulli(torch.full((40,), 0.5, device=device)),
            lambda device: torch.multinomial(torch.ones(10, device=device), 5),
            lambda device: torch.nn.Linear(5, 3, device=device).weight.detach(),
        ],
    )
    def test_draws_of_the_cpu_generator(self, make: object) -> None:
        torch.manual_seed(42)
        expected = [make("cpu"), make("cpu")]
        after = torch.randn(1).item()
        torch.manual_seed(42)
        with neuron.host_rng(True):
            drawn = [make("neuron").cpu(), make("neuron").cpu()]
        for a, b in zip(expected, drawn, strict=True):
            assert torch.equal(a, b)
        assert torch.randn(1).item() == after

    @pytest.mark.parametrize("name", DRAWS)
    def test_a_generator_draws_what_a_cpu_generator_draws(self, name: str) -> None:
        draw = DRAWS[name]
        on_cpu = torch.Generator("cpu").manual_seed(7)
        expected = [draw("cpu", on_cpu) for _ in range(3)]
        default = torch.get_rng_state()
        with neuron.host_rng(True):
            for index in range(min(2, neuron.device_count())):
                generator = torch.Generator(f"neuron:{index}").manual_seed(7)
                drawn = [draw(f"neuron:{index}", generator).cpu() for _ in range(3)]
                assert all(torch.equal(a, b) for a, b in zip(expected, drawn, strict=True))
                assert generator.initial_seed() == 7
        assert torch.equal(torch.get_rng_state(), default)

    def test_a_new_generator_has_the_seed_of_a_new_cpu_generator(self) -> None:
        expected = torch.rand(9, generator=torch.Generator("cpu"))
        with neuron.host_rng(True):
            assert torch.equal(torch.rand(9, device="neuron", generator=torch.Generator("neuron")).cpu(), expected)

    def test_generators_do_not_disturb_each_other(self) -> None:
        def draws(device: str) -> list[torch.Tensor]:
            first, second = (torch.Generator(device).manual_seed(seed) for seed in (1, 2))
            torch.manual_seed(3)
            order = (first, second, None, first, None, second)
            return [torch.randn(5, device=device, generator=generator).cpu() for generator in order]

        with neuron.host_rng(True):
            on_device = draws("neuron")
        assert all(torch.equal(a, b) for a, b in zip(draws("cpu"), on_device, strict=True))

    def test_the_state_of_a_generator_is_that_of_the_cpu_generator(self) -> None:
        on_cpu = torch.Generator("cpu").manual_seed(11)
        torch.randn(3, generator=on_cpu)  # an odd number: one normal sample is kept for the next draw
        with neuron.host_rng(True):
            generator = torch.Generator("neuron").manual_seed(11)
            torch.randn(3, device="neuron", generator=generator)
            state = generator.get_state()
            assert torch.equal(state, on_cpu.get_state())
            after = [torch.randn(7, device="neuron", generator=generator).cpu() for _ in range(2)]
            generator.set_state(state)
            again = [torch.randn(7, device="neuron", generator=generator).cpu() for _ in range(2)]
            other = torch.Generator("neuron")
            other.set_state(on_cpu.get_state())
            from_cpu = torch.randn(7, device="neuron", generator=other).cpu()
        assert torch.equal(after[0], torch.randn(7, generator=on_cpu))
        assert all(torch.equal(a, b) for a, b in zip(after, again, strict=True))
        assert torch.equal(from_cpu, after[0])
        assert other.initial_seed() == 11

    @pytest.mark.parametrize(
        "copy", [lambda g: g.clone_state(), lambda g: pickle.loads(pickle.dumps(g))], ids=["clone_state", "pickle"]
    )
    def test_a_copy_of_a_generator_goes_on_from_there(self, copy: Callable[[torch.Generator], torch.Generator]) -> None:
        on_cpu = torch.Generator("cpu").manual_seed(5)
        torch.rand(3, generator=on_cpu)
        expected = torch.rand(4, generator=on_cpu)
        with neuron.host_rng(True):
            generator = torch.Generator("neuron").manual_seed(5)
            torch.rand(3, device="neuron", generator=generator)
            twin = copy(generator)
            for one in (generator, twin):
                assert torch.equal(torch.rand(4, device="neuron", generator=one).cpu(), expected)

    def test_states_of_the_two_modes(self) -> None:
        generator = torch.Generator("neuron").manual_seed(5)
        at_start = generator.get_state()
        assert at_start.numel() == 16
        torch.rand(3, device="neuron", generator=generator)
        later = generator.get_state()
        with neuron.host_rng(True):
            generator.set_state(at_start)  # the seed is all that there is to it
            drawn = torch.rand(3, device="neuron", generator=generator).cpu()
            assert torch.equal(drawn, torch.rand(3, generator=torch.Generator("cpu").manual_seed(5)))
            with pytest.raises(RuntimeError, match="outside of host-RNG mode"):
                generator.set_state(later)
            in_mode = generator.get_state()
        generator.set_state(in_mode)
        assert generator.initial_seed() == 5 and generator.get_state().numel() == 16

    def test_seed_reseeds(self) -> None:
        with neuron.host_rng(True):
            generator = torch.Generator("neuron")
            seed = generator.seed()
            drawn = torch.rand(3, device="neuron", generator=generator).cpu()
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator("cpu").manual_seed(seed)))

    def test_the_device_s_own_generator_is_the_default_cpu_generator(self) -> None:
        torch.manual_seed(9)
        expected = torch.rand(5)
        torch.manual_seed(9)
        with neuron.host_rng(True):
            own = neuron.default_generators[0]
            assert torch.equal(torch.rand(5, device="neuron:0", generator=own).cpu(), expected)
            assert own.get_state().numel() == 16  # what DTensor and checkpoint rely on

    def test_a_generator_of_the_cpu_is_refused(self) -> None:
        with neuron.host_rng(True), pytest.raises(RuntimeError, match="Expected a 'neuron' device type"):
            torch.rand(3, device="neuron", generator=torch.Generator("cpu"))


@pytest.mark.parametrize("index", [neuron.device_count(), 99, 127])
def test_a_generator_needs_a_device_that_is_there(index: int) -> None:
    with pytest.raises(RuntimeError, match=f"invalid neuron device index {index}: this process sees"):
        torch.Generator(f"neuron:{index}")
    with pytest.raises(RuntimeError, match=f"invalid neuron device index {index}: this process sees"):
        torch.Generator(torch.device("neuron", index))


@pytest.mark.parametrize("name", ["neuron:-1", "neuron:128", "neuron:x", "neuron:"])
def test_a_generator_needs_a_name_of_a_device(name: str) -> None:
    with pytest.raises(RuntimeError):
        torch.Generator(name)
