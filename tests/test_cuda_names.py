"""Which public names of torch.cuda torch.neuron has: all but a list, which docs/limits.md explains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

LIMITS = Path(__file__).resolve().parent.parent / "docs" / "limits.md"

# What torch.cuda's modules import for themselves, or keep for their own use.
INCIDENTAL = set(
    """DEVICE_REQUIREMENT Device Literal NewType Optional PYTORCH_RELEASES_CODE_CC TYPE_CHECKING Tensor cast classproperty
    amp_definitely_not_available autocast_mode common contextlib ctypes deprecated grad_scaler importlib lru_cache os
    platform signature threading traceback warnings current_device is_initialized""".split()
)
MISSING = set(
    """CUDAGraph graph graphs graph_pool_handle make_graphed_callables MemPool use_mem_pool CUDAPluggableAllocator
    change_current_allocator caching_allocator_enable caching_allocator_disabled ExternalStream get_stream_from_external
    GreenContext green_contexts utilization memory_usage temperature power_draw clock_rate list_gpu_processes cudart
    cudaStatus CudaError check_error current_blas_handle current_solver_handle nccl nvtx gds jiterator tunable has_magma
    get_gencode_flags profiler sparse DeferredCudaCallError""".split()
)
TYPES = re.compile(
    r"(BFloat16|Bool|Byte|Char|ComplexDouble|ComplexFloat|Double|Float|Half|Int|Long|Short)(Storage|Tensor)"
)


def missing_from(module: str) -> set[str]:
    theirs, ours = (getattr(package, module) if module else package for package in (torch.cuda, torch.neuron))
    return {name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)} - INCIDENTAL


@pytest.mark.parametrize("module", ["", "amp", "memory", "random", "streams"])
def test_nothing_is_missing_that_is_not_on_the_list(module: str) -> None:
    missing = {name for name in missing_from(module) if not TYPES.fullmatch(name)}
    if module:
        assert missing <= MISSING
    elif torch.__version__.startswith("2.13."):  # another version may have more or fewer
        assert missing == MISSING


def test_the_document_names_each() -> None:
    text = LIMITS.read_text()
    table = text[text.index("## Names of torch.cuda") : text.index("## Other processes")]
    assert set(re.findall(r"`(\w+)`", table)) - {"FloatTensor", "FloatStorage"} == MISSING


def test_legacy_type_names() -> None:
    x = torch.ones(2)
    assert x.type("torch.neuron.HalfTensor").dtype == torch.float16
    assert x.neuron().type() == "torch.neuron.FloatTensor"


def test_get_arch_list_is_the_chip() -> None:
    assert torch.neuron.get_arch_list() == [torch.neuron.get_device_properties().target]


def test_device_memory_used_is_what_is_reserved() -> None:
    x = torch.ones(1 << 20, device="neuron")
    assert torch.neuron.device_memory_used() == torch.neuron.memory_reserved() >= x.nbytes


def test_amp_has_the_device_filled_in() -> None:
    amp = torch.neuron.amp
    a = torch.ones(4, 4, device="neuron", requires_grad=True)
    with amp.autocast():
        assert (a @ a).dtype == torch.float16
    with amp.autocast(dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
    with amp.autocast(enabled=False):
        assert (a @ a).dtype == torch.float32
    scaler = amp.GradScaler(init_scale=8.0)
    assert scaler.scale(a.sum()).item() == 8 * 16

    class Double(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    with amp.autocast():
        assert Double.apply(a.half()).dtype == torch.float32
