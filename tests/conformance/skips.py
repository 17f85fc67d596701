"""What the sweep leaves out, each with its reason. This is the list of gaps: keep it short."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Skip:
    """`kind` is one of the kinds of checks in `checks.py`, or "*" for all of them."""

    op: str
    kind: str
    reason: str
    dtypes: tuple[str, ...] = ()

    def covers(self, op: str, dtype: str, kind: str) -> bool:
        return self.op == op and self.kind in ("*", kind) and (not self.dtypes or dtype in self.dtypes)


_TRIANGULAR = "PyTorch's own CPU kernel (tril_out, triu_out in 2.13) writes out of bounds for batches with odd strides"
_SPARSE = "neuron tensors are strided; a sparse tensor raises NotImplementedError (tests/test_ops_regressions.py)"

SKIPS: tuple[Skip, ...] = (
    Skip("tril", "out_strided", _TRIANGULAR),
    Skip("triu", "out_strided", _TRIANGULAR),
    Skip("lu_unpack", "out_strided", _TRIANGULAR),
    Skip("linalg_lu", "out_strided", _TRIANGULAR),
    Skip("sparse_sampled_addmm", "*", _SPARSE),
    Skip("sparse_mm_reduce", "*", _SPARSE),
    Skip("to_sparse", "*", _SPARSE),
)

# Their values are whatever the memory held; shapes, strides and dtypes are compared.
WITHOUT_VALUES = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)

# The CPU does not agree with itself: LAPACK's results depend on where its work memory lies. op -> allowed difference,
# relative to the largest value.
UNSTABLE_ON_CPU = {"linalg_lstsq": 1e-4, "linalg_lstsq_grad_oriented": 1e-4}

# Tensor arguments that live on the CPU on every device: op -> positions among (input, *args).
HOST_ARGUMENTS = {"tensor_split": (1,)}


def find_skip(op: str, dtype: str, kind: str) -> Skip | None:
    return next((skip for skip in SKIPS if skip.covers(op, dtype, kind)), None)
