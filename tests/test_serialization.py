"""Saving, loading, copying and exporting neuron tensors."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

VALUES = torch.arange(12.0).reshape(3, 4)
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.fixture(autouse=True)
def first_device():
    torch.neuron.set_device(0)
    yield
    torch.neuron.set_device(0)


def save(obj: object, **kwargs: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file, **kwargs)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("dtype", "new_format"),
    # The old format has no float8, on any device.
    [(d, True) for d in DTYPES] + [(d, False) for d in DTYPES if d != torch.float8_e4m3fn],
)
def test_save_and_load(dtype: torch.dtype, new_format: bool) -> None:
    x = VALUES.to(dtype).to("neuron:1")
    y = torch.load(save(x, _use_new_zipfile_serialization=new_format))
    assert (y.device, y.dtype) == (torch.device("neuron:1"), dtype)
    assert torch.equal(y.cpu().view(torch.uint8), x.cpu().view(torch.uint8))


@pytest.mark.parametrize(
    ("map_location", "device"),
    [
        (None, "neuron:2"),
        ("cpu", "cpu"),
        (torch.device("cpu"), "cpu"),
        ("neuron", "neuron:0"),
        ("neuron:3", "neuron:3"),
        (torch.device("neuron", 1), "neuron:1"),
        ({"neuron:2": "neuron:0"}, "neuron:0"),
        ({"neuron:2": "cpu"}, "cpu"),
        ({"neuron:1": "cpu"}, "neuron:2"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.neuron(1) if location == "neuron:2" else None, "neuron:1"),
        (lambda storage, location: None, "neuron:2"),
        ("meta", "meta"),
    ],
)
def test_map_location_of_a_neuron_tensor(map_location: object, device: str) -> None:
    y = torch.load(save(VALUES.to("neuron:2")), map_location=map_location)
    assert y.device == torch.device(device)
    if device != "meta":
        assert torch.equal(y.cpu(), VALUES)


@pytest.mark.parametrize("map_location", ["neuron", "neuron:1", torch.device("neuron:1"), {"cpu": "neuron:1"}])
def test_map_location_of_a_cpu_tensor(map_location: object) -> None:
    y = torch.load(save(VALUES), map_location=map_location)
    assert y.device == torch.device("neuron:0" if map_location == "neuron" else "neuron:1")
    assert torch.equal(y.cpu(), VALUES)


def test_bare_device_means_the_current_one() -> None:
    with torch.neuron.device(2):
        assert torch.load(save(VALUES), map_location="neuron").device == torch.device("neuron:2")


def test_map_location_that_does_not_exist() -> None:
    with pytest.raises(RuntimeError, match="neuron device 9|device 9"):
        torch.load(save(VALUES), map_location="neuron:9")


def test_memory_mapped_file(tmp_path: Path) -> None:
    torch.save({"x": VALUES.neuron()}, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", mmap=True, map_location="neuron")["x"].cpu(), VALUES)


def test_views_share_their_storage_after_loading() -> None:
    base = VALUES.neuron()
    loaded = torch.load(save({"base": base, "row": base[1], "column": base[:, 2]}))
    loaded["base"].zero_()
    assert loaded["row"].sum().item() == 0
    assert loaded["column"].stride() == (4,)
    assert loaded["row"].untyped_storage().data_ptr() == loaded["base"].untyped_storage().data_ptr()


def test_pending_work_is_saved() -> None:
    x = torch.zeros(8, device="neuron")
    torch.neuron._sleep(1_000_000)
    x += 0  # the first call on a busy stream waits, to learn the shapes of the results
    torch.neuron.synchronize()
    torch.neuron._sleep(60_000_000)
    x += 5
    assert torch.load(save(x), map_location="cpu").tolist() == [5.0] * 8


def test_checkpoint_of_a_training_run(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("neuron")
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        x = VALUES.neuron()
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.neuron.get_rng_state_all(),
            "device": torch.device("neuron:1"),
        },
        tmp_path / "run.pt",
    )
    train(model, optimizer)

    again, again_optimizer = make()
    saved = torch.load(tmp_path / "run.pt")
    again.load_state_dict(saved["model"])
    again_optimizer.load_state_dict(saved["optimizer"])
    assert saved["device"] == torch.device("neuron:1")
    train(again, again_optimizer)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_parameters_and_gradients() -> None:
    p = nn.Parameter(VALUES.neuron())
    loaded = torch.load(save(p))
    assert isinstance(loaded, nn.Parameter)
    assert loaded.requires_grad
    assert loaded.device == p.device


def test_pickle() -> None:
    x = VALUES.to("neuron:1")
    y = pickle.loads(pickle.dumps({"x": x, "d": x.device}))
    assert y["x"].device == torch.device("neuron:1")
    assert y["d"] == torch.device("neuron:1")
    assert torch.equal(y["x"].cpu(), VALUES)
    module = pickle.loads(pickle.dumps(nn.Linear(2, 2).to("neuron:1")))
    assert module.weight.device == torch.device("neuron:1")


def test_deepcopy() -> None:
    x = VALUES.neuron()[1:]
    y = copy.deepcopy(x)
    x.zero_()
    assert torch.equal(y.cpu(), VALUES[1:])
    assert y.stride() == x.stride()
    assert y.storage_offset() == 4
    model = nn.Linear(2, 2).neuron()
    twin = copy.deepcopy(model)
    assert torch.equal(twin.weight.cpu(), model.weight.cpu())
    assert twin.weight.data_ptr() != model.weight.data_ptr()
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_deepcopy_keeps_shared_weights_shared() -> None:
    model = nn.ModuleList([nn.Linear(2, 2).neuron(), nn.Linear(2, 2).neuron()])
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight


def test_deepcopy_of_a_generator_state() -> None:
    generator = torch.Generator("neuron").manual_seed(4)
    state = copy.deepcopy(generator.get_state())
    torch.randn(3, device="neuron", generator=generator)
    assert not torch.equal(generator.get_state(), state)


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a": VALUES.neuron(), "b": torch.ones(2, dtype=torch.bfloat16, device="neuron:1")}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    loaded = safetensors.load_file(tmp_path / "x.safetensors")
    assert torch.equal(loaded["a"], VALUES)
    assert loaded["b"].dtype == torch.bfloat16
    # An index means the accelerator, as everywhere in torch.
    on_device = safetensors.load_file(tmp_path / "x.safetensors", device=1)
    assert on_device["a"].device == torch.device("neuron:1")
    assert torch.equal(on_device["a"].cpu(), VALUES)
    model = nn.Linear(4, 3).neuron()
    safetensors.save_model(model, tmp_path / "model.safetensors")
    other = nn.Linear(4, 3).neuron()
    safetensors.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(model.weight.cpu(), other.weight.cpu())


def test_dlpack_between_torch_and_torch() -> None:
    x = VALUES.to("neuron:1")
    kind, index = x.__dlpack_device__()
    assert (kind, index) == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 1)
    for y in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))):
        assert y.device == x.device
        assert y.data_ptr() == x.data_ptr()
        assert torch.equal((y + 1).cpu(), VALUES + 1)
    y = torch.from_dlpack(x[1:, ::2])
    assert y.stride() == (4, 2)
    y.zero_()
    assert x[1:, ::2].sum().item() == 0
    assert x[0].sum().item() == VALUES[0].sum().item()


def test_dlpack_keeps_the_memory_alive() -> None:
    x = VALUES.neuron()
    y = torch.from_dlpack(x)
    before = torch.neuron.memory_allocated()
    del x
    assert torch.neuron.memory_allocated() == before
    z = torch.zeros(3, 4, device="neuron")
    assert z.data_ptr() != y.data_ptr()
    assert torch.equal(y.cpu(), VALUES)
    del y, z
    assert torch.neuron.memory_allocated() < before


def test_dlpack_export_waits_for_pending_work() -> None:
    x = torch.zeros(4, device="neuron")
    torch.neuron._sleep(1_000_000)
    x += 0  # the first call on a busy stream waits, to learn the shapes of the results
    torch.neuron.synchronize()
    torch.neuron._sleep(240_000_000)
    x += 2
    assert not torch.neuron.query()
    x.__dlpack__()
    assert torch.neuron.query()


def test_dlpack_to_the_host_is_refused() -> None:
    x = VALUES.neuron()
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(x)
    with pytest.raises(BufferError, match="gradient"):
        VALUES.neuron().requires_grad_().__dlpack__()


def test_dlpack_from_the_host() -> None:
    array = np.arange(4, dtype=np.float32)
    assert torch.from_dlpack(array).neuron().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_numpy_is_refused_as_on_cuda() -> None:
    x = VALUES.neuron()
    message = (
        "can't convert neuron:0 device type tensor to numpy. "
        r"Use Tensor.cpu\(\) to copy the tensor to host memory first."
    )
    for convert in (x.numpy, lambda: np.asarray(x), lambda: np.array(x), x.__array__):
        with pytest.raises(TypeError, match=message):
            convert()
    assert np.array_equal(x.numpy(force=True), VALUES.numpy())
    assert np.array_equal(x.cpu().numpy(), VALUES.numpy())


def test_from_numpy_and_lists() -> None:
    array = np.arange(6).reshape(2, 3)
    assert torch.equal(torch.as_tensor(array, device="neuron").cpu(), torch.from_numpy(array))
    assert torch.equal(torch.tensor(array, device="neuron:1").cpu(), torch.from_numpy(array))
    assert torch.tensor([[1, 2], [3, 4]], device="neuron").tolist() == [[1, 2], [3, 4]]


def test_storage_resize() -> None:
    x = torch.arange(6.0, device="neuron")
    storage = x.untyped_storage()
    storage.resize_(64)
    assert storage.size() == 64
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    storage.resize_(8)
    assert torch.empty(0, device="neuron").set_(storage, 0, (2,), (1,)).tolist() == [0.0, 1.0]
    storage.resize_(0)
    assert storage.data_ptr() == 0


def test_storage_resize_is_in_stream_order() -> None:
    x = torch.zeros(1000, device="neuron")
    torch.neuron._sleep(1_000_000)
    x += 0  # the first call on a busy stream waits, to learn the shapes of the results
    torch.neuron.synchronize()
    torch.neuron._sleep(240_000_000)
    x += 1
    x.untyped_storage().resize_(8000)
    assert not torch.neuron.query()
    x += 1
    assert x.sum().item() == 2000
