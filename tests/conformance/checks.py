"""The checks of one (operator, dtype) pair: each sample runs on the CPU and then, several times, on neuron."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from torch_neuronx import _C

from .compare import Outcome, difference, observe
from .skips import HOST_ARGUMENTS, UNSTABLE_ON_CPU, WITHOUT_VALUES, find_skip
from .transfer import Placer

DEVICE = "neuron"
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.complex64,
)
MAX_SAMPLES = 8
SAMPLES_LOOKED_AT = 48
SAMPLES_OF_VARIANTS = 3
SEED = 2029
# The first run of a signature records it; the others run from that record, on the caller's thread and on the executor's.
HAND_OFFS = ("measured", "never", "always")
HAND_OFFS_BLOCKING = ("measured", "never")


@dataclass
class Failure:
    kind: str
    sample: str
    run: str
    detail: str


@dataclass
class UnitResult:
    op: str
    dtype: str
    blocking: bool
    checks: int = 0
    not_on_cpu: int = 0
    skipped: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pairs(op_db: list[Any]) -> Iterator[tuple[int, torch.dtype]]:
    """All pairs of the sweep, as (index in op_db, dtype)."""
    for index, op in enumerate(op_db):
        supported = op.supported_dtypes("cpu")
        yield from ((index, dtype) for dtype in DTYPES if dtype in supported)


def _random_like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same numbers for the same shape on every device, laid out as an autograd engine would get them."""
    generator = torch.Generator().manual_seed(SEED)
    values = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
    return Placer(device).place(values)


def _differentiable(value: Any) -> list[torch.Tensor]:
    leaves, _ = pytree.tree_flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


class PairChecker:
    """Runs all checks of one pair."""

    def __init__(
        self,
        op: Any,
        dtype: torch.dtype,
        *,
        blocking: bool,
        max_samples: int = MAX_SAMPLES,
        announce: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.op = op
        self.name = op.formatted_name
        self.dtype = dtype
        self.max_samples = max_samples
        self.announce = announce  # told what comes next, so that a crash can be blamed
        self.hand_offs = HAND_OFFS_BLOCKING if blocking else HAND_OFFS
        self.result = UnitResult(self.name, dtype_name(dtype), blocking)
        self.values = op.name not in WITHOUT_VALUES
        self.differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")

    def run(self) -> UnitResult:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = self._samples()
            for number, sample in enumerate(samples):
                self._check_sample(number, sample)
            if not self.result.blocking:
                # Signatures are known now: with other values a launch must still fit what was recorded.
                for number, sample in enumerate(self._samples(SEED + 1)):
                    self._compare("other_values", str(number), self._call(sample), runs=("always",))
            if self.dtype == self._first_dtype():
                self._check_errors()
        _C._set_hand_off("measured")
        self.result.seconds = round(time.perf_counter() - start, 4)
        return self.result

    # ---- samples ------------------------------------------------------------------------------------------------

    def _first_dtype(self) -> torch.dtype:
        supported = self.op.supported_dtypes("cpu")
        return next(dtype for dtype in DTYPES if dtype in supported)

    def _samples(self, seed: int = SEED) -> list[Any]:
        torch.manual_seed(seed)
        generated = self.op.sample_inputs("cpu", self.dtype, requires_grad=self.differentiable)
        samples = list(itertools.islice(generated, SAMPLES_LOOKED_AT))
        if len(samples) <= self.max_samples:
            return samples
        step = (len(samples) - 1) / max(1, self.max_samples - 1)
        return [samples[round(i * step)] for i in range(self.max_samples)]

    def _check_sample(self, number: int, sample: Any) -> None:
        label = str(number)
        before = torch.get_rng_state()
        if not self._compare("grad" if self.differentiable else "call", label, self._call(sample)):
            return
        draws = not torch.equal(before, torch.get_rng_state()) and self._draws(sample)
        if draws:
            self._check_device_rng(label, sample)
        if number >= SAMPLES_OF_VARIANTS:
            return
        if self.op.inplace_variant is not None and not getattr(sample, "broadcasts_input", False):
            self._compare("inplace", label, self._inplace(sample, grad=False))
            if self.differentiable and self.op.supports_inplace_autograd:
                self._compare("inplace_grad", label, self._inplace(sample, grad=True))
        if self.op.supports_out and not draws:
            self._check_out(label, sample)
        if self.dtype == torch.float32 and number < 2:
            self._check_transforms(label, sample)

    def _draws(self, sample: Any) -> bool:
        """Whether the operator itself draws random numbers."""
        placer = Placer("cpu")
        arguments = self._place(placer, sample)
        before = torch.get_rng_state()
        try:
            self.op.op(*arguments[0], **arguments[1])
        except Exception:
            return False
        return not torch.equal(before, torch.get_rng_state())

    def _place(self, placer: Placer, sample: Any) -> tuple[list[Any], dict[str, Any]]:
        stay = HOST_ARGUMENTS.get(self.op.name, ())
        positional = [
            value if number in stay else placer.place(value)
            for number, value in enumerate((sample.input, *sample.args))
        ]
        return positional, placer.place(dict(sample.kwargs))

    # ---- the calls, as functions of the device ----------------------------------------------------------------------

    def _call(self, sample: Any) -> Callable[[str], Any]:
        def call(device: str) -> Any:
            placer = Placer(device)
            positional, keywords = self._place(placer, sample)
            with self._default_device(placer, device):
                result = self.op.op(*positional, **keywords)
            gradients = self._gradients(result, placer, device) if self.differentiable else None
            return result, gradients, placer.tensors()

        return call

    @staticmethod
    def _default_device(placer: Placer, device: str) -> contextlib.AbstractContextManager[object]:
        """Factories make their results on the default device; nothing else needs it."""
        return contextlib.nullcontext() if placer.tensors() else torch.device(device)

    def _gradients(self, result: Any, placer: Placer, device: str) -> Any:
        inputs = [tensor for tensor in placer.tensors() if tensor.requires_grad and tensor.is_leaf]
        outputs = _differentiable(result)
        if not inputs or not outputs:
            return None
        directions = [_random_like(output, device) for output in outputs]
        try:
            return torch.autograd.grad(outputs, inputs, directions, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            return f"{type(error).__name__} in backward"

    def _inplace(self, sample: Any, *, grad: bool) -> Callable[[str], Any]:
        def call(device: str) -> Any:
            placer = Placer(device, requires_grad=grad)
            positional, keywords = self._place(placer, sample)
            first = positional[0]
            if grad:
                first = pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, first)
            result = self.op.inplace_variant(first, *positional[1:], **keywords)
            gradients = self._gradients(result, placer, device) if grad else None
            return result, gradients, placer.tensors()

        return call

    def _check_out(self, label: str, sample: Any) -> None:
        expected = observe(lambda: self._plain(sample, "cpu"), lambda: None)
        leaves = [leaf for leaf in expected.leaves if hasattr(leaf, "values")]
        if expected.error is not None or not leaves or len(leaves) != len(expected.leaves):
            return
        single = len(leaves) == 1

        def out_call(make: Callable[[Any, str], torch.Tensor]) -> Callable[[str], Any]:
            def call(device: str) -> Any:
                placer = Placer(device, requires_grad=False)
                positional, keywords = self._place(placer, sample)
                out = [make(leaf, device) for leaf in leaves]
                addresses = [tensor.data_ptr() for tensor in out]
                with self._default_device(placer, device):
                    result = self.op.op(*positional, **keywords, out=out[0] if single else tuple(out))
                moved = [a != tensor.data_ptr() for a, tensor in zip(addresses, out, strict=True)]
                return result, out, placer.tensors(), moved if make is not empty else None

            return call

        def same(leaf: Any, device: str) -> torch.Tensor:
            return torch.zeros(leaf.shape, dtype=leaf.dtype, device=device)

        def strided(leaf: Any, device: str) -> torch.Tensor:
            wide = torch.zeros([*leaf.shape[::-1], 2], dtype=leaf.dtype, device=device)
            return wide[..., 0].permute(*range(len(leaf.shape))[::-1])

        def empty(leaf: Any, device: str) -> torch.Tensor:
            return torch.empty(0, dtype=leaf.dtype, device=device)

        def wrong_dtype(leaf: Any, device: str) -> torch.Tensor:
            other = torch.int64 if leaf.dtype != torch.int64 else torch.float32
            return torch.zeros(leaf.shape, dtype=other, device=device)

        for make in (same, strided, empty, wrong_dtype):
            self._compare(f"out_{make.__name__}", label, out_call(make))

    def _plain(self, sample: Any, device: str) -> Any:
        placer = Placer(device, requires_grad=False)
        positional, keywords = self._place(placer, sample)
        with self._default_device(placer, device):
            return self.op.op(*positional, **keywords)

    def _check_transforms(self, label: str, sample: Any) -> None:
        op = self.op.op

        def forward_mode(device: str) -> Any:
            placer = Placer(device)
            with forward_ad.dual_level():
                positional, keywords = self._place(placer, sample)
                tangents = {id(t): _random_like(t, device) for t in placer.tensors() if t.requires_grad}

                def dual(value: Any) -> Any:
                    if isinstance(value, torch.Tensor) and id(value) in tangents:
                        return forward_ad.make_dual(value.detach(), tangents[id(value)])
                    return value

                result = op(*pytree.tree_map(dual, positional), **pytree.tree_map(dual, keywords))
                return pytree.tree_map(
                    lambda t: forward_ad.unpack_dual(t) if isinstance(t, torch.Tensor) else t, result
                )

        def double_backward(device: str) -> Any:
            placer = Placer(device)
            positional, keywords = self._place(placer, sample)
            inputs = [tensor for tensor in placer.tensors() if tensor.requires_grad]
            outputs = _differentiable(op(*positional, **keywords))
            directions = [_random_like(output, device).requires_grad_() for output in outputs]
            # On the caller's thread, as the CPU does: nodes are run in the order of numbers that each thread counts for
            # itself, so that a device thread adds up the gradients of a graph made by backward in another order.
            with torch.autograd.set_multithreading_enabled(False):
                first = torch.autograd.grad(outputs, inputs, directions, allow_unused=True, create_graph=True)
                again = _differentiable(first)
                return first, torch.autograd.grad(
                    again, inputs + directions, [_random_like(t, device) for t in again], allow_unused=True
                )

        def batched(device: str) -> Any:
            placer = Placer(device, requires_grad=False)
            positional, keywords = self._place(placer, sample)
            first = positional[0]
            return torch.vmap(lambda value: op(value, *positional[1:], **keywords), randomness="same")(
                torch.stack([first, first])
            )

        if self.differentiable and self.op.supports_forward_ad:
            self._compare("forward_ad", label, forward_mode)
        if self.differentiable and self.op.supports_gradgrad:
            self._compare("double_backward", label, double_backward)
        if isinstance(sample.input, torch.Tensor):
            self._compare("vmap", label, batched)

    def _check_errors(self) -> None:
        if self.op.error_inputs_func is None:
            return
        torch.manual_seed(SEED)
        for number, error_input in enumerate(self.op.error_inputs("cpu")):
            self._compare("error", str(number), self._call_for_error(error_input.sample_input))

    def _call_for_error(self, sample: Any) -> Callable[[str], Any]:
        def call(device: str) -> Any:
            placer = Placer(device)
            positional, keywords = self._place(placer, sample)
            with self._default_device(placer, device):
                return self.op.op(*positional, **keywords)

        return call

    def _check_device_rng(self, label: str, sample: Any) -> None:
        """Without host-RNG mode: the numbers depend on the seed alone, not on how a launch was run."""
        call = self._call(sample)
        reference = self._observe(call, "cpu", values=False)
        _C.set_host_rng(False)
        try:
            first: Outcome | None = None
            for run in self.hand_offs:
                outcome = self._observe(call, DEVICE, hand_off=run)
                self.result.checks += 1
                if first is None:
                    first = outcome
                    without_values = self._observe(call, DEVICE, hand_off=run, values=False)
                    found = difference(reference, without_values, DEVICE)
                else:
                    found = difference(first, outcome, DEVICE)
                if found is not None:
                    self.result.failures.append(Failure("device_rng", label, run, found))
        finally:
            _C.set_host_rng(True)

    # ---- comparing ------------------------------------------------------------------------------------------------

    def _observe(
        self, call: Callable[[str], Any], device: str, *, hand_off: str = "measured", values: bool = True
    ) -> Outcome:
        torch.manual_seed(SEED)
        _C._set_hand_off(hand_off)
        synchronize = torch.neuron.synchronize if device == DEVICE else lambda: None
        return observe(lambda: call(device), synchronize, values=values and self.values)

    def _compare(
        self, kind: str, label: str, call: Callable[[str], Any], *, runs: tuple[str, ...] | None = None
    ) -> bool:
        """True when the CPU can do it and neuron did the same."""
        skip = find_skip(self.name, self.result.dtype, kind)
        if skip is not None:
            self.result.skipped.append(f"{kind}: {skip.reason}")
            return False
        expected = self._observe(call, "cpu")
        if expected.error is not None:
            self.result.not_on_cpu += 1
        for run in runs or self.hand_offs:
            self.announce(f"{kind}, sample {label}, run {run}")
            actual = self._observe(call, DEVICE, hand_off=run)
            found = difference(expected, actual, DEVICE, tolerance=UNSTABLE_ON_CPU.get(self.name, 0.0))
            self.result.checks += 1
            if found is not None:
                self.result.failures.append(Failure(kind, label, run, found))
                return False
        return expected.error is None
