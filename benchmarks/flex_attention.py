"""Compiled FlexAttention: near the CPU's fused attention where that applies, and faster where a mask hides blocks.

Causal forward takes at most 1.2 times of the CPU's scaled_dot_product_attention, backward 1.5 times. A sliding window
of 256 at 8192 positions is at least 5 times faster than dense attention. The memory that a training step needs besides
its tensors grows with the sequence, not with its square.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Result, Settings, compare, compare_sides, main, synchronize, timed
from side import Timer
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

FORWARD_TARGET = 1.2
BACKWARD_TARGET = 1.5
WINDOW_TARGET = 5.0
CAUSAL_SHAPE = (1, 8, 2048, 64)
WINDOW = 256
WINDOW_SHAPE = (1, 2, 8192, 64)
COMPILED_LENGTH = 640
MEMORY_LENGTHS = (1024, 2048, 4096, 8192, 16384)
# Twice the length: twice the memory, and something for what doesn't depend on it. The square would be 4.
MEMORY_GROWTH = 2.5
MIB = 2**20

compiled = torch.compile(flex_attention, backend="neuron", fullgraph=True, dynamic=False)  # when it is first called
compiled_for_any_length = torch.compile(flex_attention, backend="neuron", fullgraph=True, dynamic=True)


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def sliding_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) & (query - key < WINDOW)


def block_mask(mask_mod: Callable[..., Tensor], length: int) -> BlockMask:
    # Compiled, so that the mask of all elements is never in memory.
    return torch.compile(create_block_mask, backend="neuron")(mask_mod, None, None, length, length, device="neuron")


def tensors(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(shape).to(device, dtype) for _ in range(4)]
    return [x.requires_grad_() for x in made[:3]] + made[3:]


class Attention:
    """Forward and backward of one attention, each to be timed by itself."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor]) -> None:
        *self.qkv, self.grad = inputs
        self.attend = functools.partial(attend, *self.qkv)

    def forward(self) -> float:
        return timed(self.attend)

    def backward(self) -> float:
        out = self.attend()
        synchronize()
        return timed(lambda: torch.autograd.grad(out, self.qkv, self.grad))


def causal_timer(device: str, dtype: torch.dtype, phase: str) -> Timer:
    """Causal attention: the CPU's scaled_dot_product_attention, or FlexAttention on the device."""
    if device == "cpu":
        attend = functools.partial(scaled_dot_product_attention, is_causal=True)
    else:
        attend = functools.partial(compiled, block_mask=block_mask(causal, CAUSAL_SHAPE[2]))
    attention = Attention(attend, tensors(CAUSAL_SHAPE, device, dtype))
    block = attention.forward if phase == "forward" else attention.backward
    block()
    return lambda count: sum(block() for _ in range(count)) / count


def claims(settings: Settings) -> list[Result]:
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        for phase, target in (("forward", FORWARD_TARGET), ("backward", BACKWARD_TARGET)):
            name = f"causal, {str(dtype).removeprefix('torch.')}, {phase}"
            results.append(compare_sides(name, causal_timer, (dtype, phase), settings, target, count=1))

    mask = block_mask(sliding_window, WINDOW_SHAPE[2])
    dense = Attention(compiled, tensors(WINDOW_SHAPE, "neuron"))
    window = Attention(lambda q, k, v: compiled(q, k, v, block_mask=mask), tensors(WINDOW_SHAPE, "neuron"))
    print("the side called cpu is dense attention on the device:")
    for name in ("forward", "backward"):
        sides = getattr(dense, name), getattr(window, name)
        results.append(compare(f"window of {WINDOW}, {name}", *sides, settings, WINDOW_TARGET, at_least=True))
    return results


def peak_of_step(length: int) -> int:
    """Bytes by which the first causal training step at this length raises the process's memory, its results included.

    To be called once in a process: memory that an earlier step left would hide what this one needs.
    """
    _training_step(COMPILED_LENGTH)()  # compiles for any length
    step = _training_step(length)
    torch.accelerator.synchronize()
    torch.accelerator.memory.empty_cache()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what free() kept would hide some of what the step needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _status("VmRSS")
    graphs = len(torch.neuron.get_dynamo_metrics())
    step()
    peak = _status("VmHWM") - before
    if len(torch.neuron.get_dynamo_metrics()) != graphs:
        raise RuntimeError(f"length {length} was compiled again: the peak is the compiler's")
    return peak


def _training_step(length: int) -> Callable[[], float]:
    mask = block_mask(causal, length)
    inputs = tensors((1, 2, length, 64), "neuron")
    return Attention(lambda q, k, v: compiled_for_any_length(q, k, v, block_mask=mask), inputs).backward


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _peak_in_new_process(length: int) -> int:
    code = f"import flex_attention; print(flex_attention.peak_of_step({length}))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(run.stdout)


def memory_grows_with_length() -> bool:
    print("\npeak memory of a causal training step, 2 heads of 64, float32, a new process for each length:")
    peaks = {}
    for length in MEMORY_LENGTHS:
        peaks[length] = _peak_in_new_process(length)
        square = 2 * length * length * 4
        print(f"  {length:>6} positions {peaks[length] / MIB:>8.1f} MiB   (scores in full: {square / MIB:>8.1f} MiB)")
    longest = MEMORY_LENGTHS[-1]
    growth = peaks[longest] / peaks[longest // 2]
    verdict = "PASS" if growth <= MEMORY_GROWTH else "FAIL"
    print(f"  {longest // 2} to {longest}: {growth:.2f} times  <= {MEMORY_GROWTH}  {verdict}")
    return verdict == "PASS"


if __name__ == "__main__":
    status = main(claims, __doc__)
    sys.exit(status if memory_grows_with_length() else 1)
