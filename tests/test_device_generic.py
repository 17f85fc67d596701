"""PyTorch's device-generic suites for a PrivateUse1 device, as far as they ship in the wheel.

The wheel has the machinery (`instantiate_device_type_tests`), the databases of operators, modules and optimizers, and
`TestGradients`; the test files themselves (test_torch.py, test_modules.py, test_optim.py, ...) are not in it. So these
classes run the databases: each module and each optimizer must do on neuron exactly what it does on the CPU.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
    optims,
)
from torch.testing._internal.common_utils import TestCase, TestGradients

from tests.conformance.compare import difference, observe
from tests.conformance.transfer import Placer

SEED = 7
# One of each family: elementwise, reductions, views, indexing, matrix products, decompositions, convolution, losses.
GRADCHECKED = {
    "addmm", "cumprod", "gather", "linalg.cholesky", "linalg.eigh", "linalg.solve", "logsumexp", "masked_fill",
    "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.scaled_dot_product_attention",
    "nn.functional.smooth_l1_loss", "norm", "prod", "sort", "stack", "var",
}  # fmt: skip


class TestNeuronModules(TestCase):
    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_same_as_cpu(self, device: str, dtype: torch.dtype, module_info: Any, training: bool) -> None:
        torch.manual_seed(SEED)
        inputs = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for module_input in inputs:
            if module_input.forward_input is None:
                continue
            made = module_input.constructor_input
            module = module_info.module_cls(*made.args, **made.kwargs).to(dtype)
            module.train(training)
            forward = module_input.forward_input

            def run(where: str, module: torch.nn.Module = module, forward: Any = forward) -> Any:
                placer = Placer(where)
                args, kwargs = placer.place(forward.args), placer.place(forward.kwargs)
                moved = copy.deepcopy(module).to(where)
                torch.manual_seed(SEED)
                result = moved(*args, **kwargs)
                outputs = [leaf for leaf in _leaves(result) if leaf.requires_grad]
                for output in outputs:
                    output.backward(torch.ones_like(output), retain_graph=True)
                gradients = [tensor.grad for tensor in [*placer.tensors(), *moved.parameters()]]
                return result, gradients, dict(moved.state_dict())

            with torch.neuron.host_rng(True):
                expected = observe(lambda: run("cpu"), lambda: None)
                self.assertIsNone(expected.error, f"{module_info.name} {made.args} {made.kwargs}")
                found = difference(expected, observe(lambda: run(device), torch.neuron.synchronize), "neuron")
            self.assertIsNone(found, f"{module_info.name} {made.args} {made.kwargs}: {found}")


class TestNeuronOptimizers(TestCase):
    @optims(optim_db, dtypes=(torch.float32,))
    def test_same_as_cpu(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
        if optim_info.only_supports_sparse_grads:
            self.skipTest("takes sparse gradients only, which neuron does not carry")
        for optim_input in _get_optim_inputs_including_global_cliquey_kwargs(
            "cpu", dtype, optim_info, skip=("differentiable",)
        ):
            chosen = dict(optim_input.kwargs)
            if "foreach" in optim_info.supported_impls and not chosen.keys() & {"foreach", "fused", "capturable"}:
                chosen["foreach"] = True  # the default on accelerators; the CPU's is one tensor at a time

            def run(where: str, chosen: dict[str, Any] = chosen) -> Any:
                torch.manual_seed(SEED)
                parameters = [torch.nn.Parameter(torch.randn(4, 3, dtype=dtype).to(where)) for _ in range(3)]
                optimizer = optim_info.optim_cls(parameters, **copy.deepcopy(chosen))
                data = torch.randn(3, 5, dtype=dtype).to(where)

                def loss() -> torch.Tensor:
                    optimizer.zero_grad()
                    value = sum((parameter @ data).tanh().square().mean() for parameter in parameters)
                    value.backward()
                    return value

                losses = []
                for _ in range(3):
                    losses.append(loss().detach())
                    optimizer.step(loss) if optim_info.step_requires_closure else optimizer.step()
                return losses, [parameter.detach() for parameter in parameters], list(optimizer.state.values())

            expected = observe(lambda: run("cpu"), lambda: None)
            self.assertIsNone(expected.error, f"{optim_input.desc} {optim_input.kwargs}")
            # Step counters are CPU tensors on every device.
            found = difference(expected, observe(lambda: run(device), torch.neuron.synchronize), None)
            self.assertIsNone(found, f"{optim_input.desc} {optim_input.kwargs}: {found}")


class TestNeuronGradients(TestGradients):
    @ops([op for op in op_db if op.name in GRADCHECKED], allowed_dtypes=(torch.float64,))
    def test_gradcheck(self, device: str, dtype: torch.dtype, op: Any) -> None:
        self._grad_test_helper(device, dtype, op, op.get_op())

    @ops([op for op in op_db if op.name in ("addmm", "linalg.solve", "prod")], allowed_dtypes=(torch.float64,))
    def test_gradgradcheck(self, device: str, dtype: torch.dtype, op: Any) -> None:
        self._check_helper(device, dtype, op, op.get_op(), "bwgrad_bwgrad")


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


for suite in (TestNeuronModules, TestNeuronOptimizers, TestNeuronGradients):
    instantiate_device_type_tests(suite, globals(), only_for=("privateuse1", "neuron"))
