"""torch.neuron's device functions, and moving things to the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

GIB = 2**30


@pytest.fixture(autouse=True)
def first_device():
    torch.neuron.set_device(0)
    yield
    torch.neuron.set_device(0)


def test_available() -> None:
    assert torch.neuron.is_available()
    assert torch.neuron.device_count() == 4
    torch.neuron.init()
    assert torch.neuron.is_initialized()
    assert torch.neuron.is_neuron_runtime_initialized()
    assert torch.neuron._initialized
    assert not torch.neuron._is_in_bad_fork()


def test_package_mirrors_the_module() -> None:
    import torch_neuronx

    for name in torch.neuron.__all__:
        assert getattr(torch_neuronx, name) is getattr(torch.neuron, name), name
        assert name in dir(torch_neuronx)


def test_names_of_torch_cuda() -> None:
    wanted = """is_available is_initialized init device_count current_device set_device device device_of get_device_name
    get_device_capability get_device_properties can_device_access_peer Stream Event stream StreamContext current_stream
    default_stream set_stream synchronize manual_seed manual_seed_all seed seed_all initial_seed get_rng_state
    get_rng_state_all set_rng_state set_rng_state_all default_generators is_bf16_supported _is_in_bad_fork _lazy_init
    _sleep _initialized""".split()
    for name in wanted:
        assert hasattr(torch.cuda, name), name
        assert hasattr(torch.neuron, name), name


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'torch.neuron' has no attribute 'nothing'"):
        _ = torch.neuron.nothing


def test_every_public_function_is_documented() -> None:
    for name in torch.neuron.__all__:
        assert getattr(torch.neuron, name).__doc__, name


def test_submodules_can_be_imported() -> None:
    import torch.neuron.memory
    import torch.neuron.random
    from torch.neuron.streams import Stream

    assert Stream is torch.neuron.Stream


@pytest.mark.parametrize("device", [2, "neuron:2", torch.device("neuron", 2), torch.device("neuron:2")])
def test_set_device(device: object) -> None:
    torch.neuron.set_device(device)
    assert torch.neuron.current_device() == 2
    assert torch.ones(1, device="neuron").device == torch.device("neuron:2")
    assert torch.ones(1, device="neuron").neuron().device.index == 2


def test_set_device_ignores_negative_indices() -> None:
    torch.neuron.set_device(1)
    torch.neuron.set_device(-1)
    assert torch.neuron.current_device() == 1


@pytest.mark.parametrize("device", [4, "neuron:4", 100, 127])
def test_set_device_out_of_range(device: object) -> None:
    with pytest.raises(RuntimeError, match="invalid neuron device index .* this process sees 4 neuron device"):
        torch.neuron.set_device(device)
    with pytest.raises(RuntimeError, match="invalid neuron device index"):
        torch.ones(1, device=torch.device(device) if isinstance(device, str) else torch.device("neuron", device))
    assert torch.neuron.current_device() == 0


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cuda:0", "meta"])
def test_other_device_types_are_refused(device: object) -> None:
    for function in (
        torch.neuron.set_device,
        torch.neuron.get_device_properties,
        torch.neuron.synchronize,
        torch.neuron.device,
        torch.neuron.current_stream,
        torch.neuron.get_rng_state,
    ):
        with pytest.raises(ValueError, match="Expected a neuron device"):
            function(device)


@pytest.mark.parametrize("device", [1.5, [0], object(), True])
def test_nonsense_is_refused(device: object) -> None:
    with pytest.raises(ValueError, match=r"Expected a torch\.device"):
        torch.neuron.set_device(device)


def test_set_device_needs_an_index() -> None:
    with pytest.raises(ValueError, match="with a specified index"):
        torch.neuron.set_device("neuron")


def test_device_context() -> None:
    with torch.neuron.device(3):
        assert torch.neuron.current_device() == 3
        with torch.neuron.device("neuron:1"):
            assert torch.neuron.current_device() == 1
        assert torch.neuron.current_device() == 3
        with torch.neuron.device(None), torch.neuron.device(-1), torch.neuron.device("neuron"):
            assert torch.neuron.current_device() == 3
    assert torch.neuron.current_device() == 0


def test_device_context_restores_after_an_error_and_can_be_used_again() -> None:
    context = torch.neuron.device(2)
    for _ in range(2):
        with pytest.raises(KeyError), context:
            assert torch.neuron.current_device() == 2
            raise KeyError
        assert torch.neuron.current_device() == 0


def test_device_of() -> None:
    x = torch.ones(1, device="neuron:3")
    with torch.neuron.device_of(x):
        assert torch.neuron.current_device() == 3
    with torch.neuron.device_of(x.untyped_storage()):
        assert torch.neuron.current_device() == 3
    with torch.neuron.device_of(torch.ones(1)):
        assert torch.neuron.current_device() == 0


def test_ops_run_on_the_device_of_their_tensors() -> None:
    x = torch.arange(4.0, device="neuron:2")
    assert (x + 1).device == torch.device("neuron:2")
    assert torch.zeros_like(x).device == torch.device("neuron:2")
    assert torch.neuron.current_device() == 0


def test_tensors_on_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="neuron:0") + torch.ones(2, device="neuron:1")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="neuron:0") @ torch.ones(2, 2)


def test_properties() -> None:
    properties = torch.neuron.get_device_properties(1)
    assert properties.name == "AWS Trainium2 NeuronCore-v3 x2 (virtual, neuron)"
    assert properties.total_memory == 24 * GIB
    assert (properties.major, properties.minor, properties.multi_processor_count) == (3, 0, 2)
    assert (properties.target, properties.chip, properties.core) == ("trn2", "Trainium2", "NeuronCore-v3")
    assert (properties.core_id, properties.lnc, properties.virtual) == (1, 2, True)
    assert properties.sbuf_bytes == 2 * 28 * 2**20
    assert properties.psum_bytes == 2 * 2 * 2**20
    assert properties.tensor_tflops["bfloat16"] == 158
    with pytest.raises(AttributeError):
        properties.name = "other"


def test_properties_arguments() -> None:
    torch.neuron.set_device(2)
    for device in (None, "neuron", torch.device("neuron"), 2, "neuron:2"):
        assert torch.neuron.get_device_properties(device).core_id == 2
    assert torch.neuron.get_device_name().endswith("neuron)")
    assert torch.neuron.get_device_capability(3) == (3, 0)
    for device in (-1, 4, "neuron:9"):
        for function in (
            torch.neuron.get_device_properties,
            torch.neuron.get_device_name,
            torch.neuron.get_device_capability,
        ):
            with pytest.raises(AssertionError, match="Invalid device id"):
                function(device)


def test_peer_access() -> None:
    assert torch.neuron.can_device_access_peer(0, 1)
    assert not torch.neuron.can_device_access_peer("neuron:1", 1)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.neuron.can_device_access_peer(0, 7)


def test_synchronize() -> None:
    torch.neuron._sleep(10_000_000)
    assert not torch.neuron.current_stream().query()
    torch.neuron.synchronize()
    assert torch.neuron.current_stream().query()
    for device in (None, 1, "neuron:1", "neuron"):
        torch.neuron.synchronize(device)
    with pytest.raises(RuntimeError, match="invalid neuron device index"):
        torch.neuron.synchronize(11)


def test_tensor_methods() -> None:
    x = torch.arange(3)
    y = x.neuron()
    assert y.is_neuron
    assert not x.is_neuron
    assert y.device == torch.device("neuron:0")
    assert y.neuron() is y
    assert x.neuron(1).device.index == 1
    assert torch.equal(y.cpu(), x)
    assert y.to("cpu").tolist() == [0, 1, 2]
    assert y.type() == "torch.neuron.LongTensor"
    assert y.get_device() == 0
    assert "device='neuron:0'" in repr(y)
    assert str(y.device) == "neuron:0"


def test_storage_moves() -> None:
    storage = torch.arange(6.0).untyped_storage()
    moved = storage.neuron()
    assert moved.device == torch.device("neuron:0")
    assert moved.is_neuron
    assert moved.cpu().tolist() == storage.tolist()
    typed = torch.arange(3.0)._typed_storage().neuron(1)
    assert typed.device == torch.device("neuron:1")
    assert typed.cpu().tolist() == [0.0, 1.0, 2.0]


def test_module_moves() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    host = copy.deepcopy(net)
    assert net.neuron() is net
    assert {p.device for p in net.parameters()} == {torch.device("neuron:0")}
    assert {b.device for b in net.buffers()} == {torch.device("neuron:0")}
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(x.neuron()).cpu(), host(x))
    net.to("neuron:1")
    assert next(net.parameters()).device.index == 1
    net.cpu()
    assert next(net.parameters()).device.type == "cpu"


def test_module_made_on_the_device() -> None:
    net = nn.Linear(3, 4, device="neuron:1", dtype=torch.bfloat16)
    assert net.weight.device == torch.device("neuron:1")
    meta = nn.Linear(3, 4, device="meta").to_empty(device="neuron")
    assert meta.weight.device == torch.device("neuron:0")


def test_packed_sequence_moves() -> None:
    packed = pack_padded_sequence(torch.arange(6.0).view(3, 2, 1), torch.tensor([3, 2]))
    moved = packed.neuron()
    assert moved.is_neuron
    assert moved.data.device == torch.device("neuron:0")
    assert moved.batch_sizes.device.type == "cpu"
    assert torch.equal(moved.data.cpu(), packed.data)
    assert packed.to("neuron:1").data.device.index == 1


def test_default_device() -> None:
    torch.set_default_device("neuron:1")
    try:
        assert torch.ones(2).device == torch.device("neuron:1")
        assert nn.Linear(2, 2).weight.device == torch.device("neuron:1")
        assert torch.get_default_device() == torch.device("neuron:1")
        assert torch.tensor([1, 2]).device == torch.device("neuron:1")
        assert torch.randperm(4).device == torch.device("neuron:1")
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


def test_device_as_context_manager() -> None:
    with torch.device("neuron"):
        assert torch.arange(3).device == torch.device("neuron:0")
        assert nn.Linear(2, 2).bias.device == torch.device("neuron:0")
        with torch.device("cpu"):
            assert torch.ones(1).device.type == "cpu"
    assert torch.ones(1).device.type == "cpu"


def test_device_index_as_accelerator_device() -> None:
    # An integer means the current accelerator, as it means cuda elsewhere.
    assert torch.device(1) == torch.device("neuron:1")
    assert torch.ones(1, device=1).device == torch.device("neuron:1")


def test_bf16_and_amp_dtypes() -> None:
    assert torch.neuron.is_bf16_supported()
    assert set(torch.neuron.get_amp_supported_dtype()) == {torch.float16, torch.bfloat16, torch.float32}


def test_op_tracking() -> None:
    x = torch.ones(2, device="neuron")
    torch.neuron.clear_op_tracking()
    x + x
    x.relu()
    executed = torch.neuron.get_executed_ops()
    assert any(name.startswith("aten::add") for name in executed)
    assert any(name.startswith("aten::relu") for name in executed)
    assert torch.neuron.get_fallback_ops() == []
    torch.neuron.clear_op_tracking()
    assert torch.neuron.get_executed_ops() == []


def test_names_that_libraries_use() -> None:
    assert torch.neuron.OutOfMemoryError is torch.OutOfMemoryError
    assert torch.neuron.AcceleratorError is torch.AcceleratorError
    assert torch.neuron.is_current_stream_capturing() is False
    assert torch.neuron.ipc_collect() is None
    called = []
    torch.neuron._lazy_call(lambda: called.append(1))
    assert called == [1]
    before = torch.neuron._exchange_device(1)
    try:
        assert torch.neuron.current_device() == 1 and torch.neuron._maybe_exchange_device(-1) == 1
    finally:
        torch.neuron._exchange_device(before)
    import torch_neuronx

    assert torch_neuronx._is_in_bad_fork() is False
