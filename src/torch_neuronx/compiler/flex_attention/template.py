"""A C++ kernel with several results as a node of Inductor's graph: kernels/*.h, and generated code that calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp_template import CppTemplate
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP, cexpr_index
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

KERNELS = Path(__file__).with_name("kernels")


@functools.cache
def kernel_text(name: str) -> str:
    """The text of kernels/<name>.h, as generated code takes it in: without what makes it a header."""
    lines = (KERNELS / f"{name}.h").read_text().splitlines()
    return "\n".join(line for line in lines if line.strip() != "#pragma once")


class FlexTemplate(CppTemplate):
    """One kernel: its inputs and results by name, and a function that writes its body.

    Args:
        name: part of the kernel's name
        inputs: realised buffers or views; the same buffer may be there twice. None: not given
        captured: realised tensors that the modifications read
        outputs: layouts of the results
        write: called with a KernelWriter, returns the kernel's text after its signature
    """

    def __init__(
        self,
        name: str,
        inputs: dict[str, ir.IRNode | None],
        captured: Sequence[ir.IRNode],
        outputs: dict[str, ir.FixedLayout],
        texts: Sequence[str],
        write: Callable[[KernelWriter], str],
    ) -> None:
        given = {key: node for key, node in inputs.items() if node is not None}
        given.update({f"captured_{i}": node for i, node in enumerate(captured)})
        super().__init__(name, list(given.values()), next(iter(outputs.values())), num_threads=1)
        self._input_names = list(given)
        self._outputs = outputs
        self._texts = texts
        self._write = write

    def create(self) -> dict[str, ir.TensorBox]:
        """Adds the kernel to the graph; its results by name."""
        device = self.layout.device
        node = ir.CppTemplateBuffer(
            layout=ir.MultiOutputLayout(device=device),  # type: ignore[arg-type]
            inputs=self.input_nodes,
            make_kernel_render=self._make_kernel_render,
            template=self,  # type: ignore[arg-type]
            choice=None,
        )
        node.allow_epilogue_fusion = False
        results = {
            name: ir.MultiOutput(layout, node, [(list, i)]) for i, (name, layout) in enumerate(self._outputs.items())
        }
        node.outputs = list(results.values())
        return {name: ir.TensorBox.create(result) for name, result in results.items()}

    def _make_kernel_render(self, node: ir.CppTemplateBuffer, **_: Any) -> tuple[CppTemplateKernel, Callable[[], str]]:
        kernel = CppTemplateKernel(kernel_name=str(Placeholder.KERNEL_NAME), num_threads=self.num_threads)
        return kernel, functools.partial(kernel.render, self, template_buffer_node=node)

    def render(self, *, kernel: CppTemplateKernel, template_buffer_node: ir.CppTemplateBuffer) -> str:  # type: ignore[override]
        inputs: dict[str, Any] = dict(zip(self._input_names, template_buffer_node.inputs, strict=True))
        assert template_buffer_node.outputs is not None
        outputs: dict[str, Any] = dict(zip(self._outputs, template_buffer_node.outputs, strict=True))
        # A result that nothing reads has no memory.
        alive = {key: out for key, out in outputs.items() if out.get_name() not in V.graph.removed_buffers}
        signature = kernel.def_kernel(inputs=inputs, outputs=alive)
        writer = KernelWriter(kernel, inputs, alive)
        with patch.object(ir.FlexibleLayout, "allow_indexing", True):
            body = self._write(writer)
        texts = "\n".join(kernel_text(text) for text in self._texts)
        profile = kernel.maybe_codegen_profile()
        return f'{self.header().getvalue()}\n{texts}\nextern "C" {signature} {{\n{profile}\n{body}\n}}\n'


class KernelWriter:
    """Writes a kernel's inputs, results and sizes as C++."""

    def __init__(self, kernel: CppTemplateKernel, inputs: dict[str, ir.IRNode], outputs: dict[str, ir.IRNode]) -> None:
        self.kernel = kernel
        self._nodes = {**inputs, **outputs}
        self._outputs = outputs

    def number(self, expression: Any) -> str:
        return cexpr_index(self.kernel.rename_indexing(sympy.sympify(expression)))

    def has(self, name: str) -> bool:
        return name in self._nodes

    def dtype(self, name: str) -> str:
        return DTYPE_TO_CPP[self._nodes[name].get_dtype()]

    def pointer(self, name: str) -> str:
        """The first element, or nullptr for what isn't given."""
        if name not in self._nodes:
            return "nullptr"
        node = self._nodes[name]
        args = self.kernel.args
        variable = (args.output_buffers if name in self._outputs else args.input_buffers)[node.get_name()]
        offset = node.get_layout().offset
        return str(variable) if offset == 0 else f"{variable} + {self.number(offset)}"

    def tensor(self, name: str) -> str:
        """An initializer of flex::Tensor; a batch of one serves all. Without memory for a result that nothing reads."""
        if name not in self._nodes:
            return "{}"
        node = self._nodes[name]
        size, stride = node.get_size(), node.get_stride()
        strides = [self._stride_or_zero(size[0], stride[0]), *(self.number(s) for s in stride[1:3])]
        return f"{{{self.pointer(name)}, {', '.join(strides)}}}"

    def table(self, count: str, index: str) -> str:
        """An initializer of flex::BlockTable."""
        if not self.has(count):
            return "{}"
        fields = []
        for name in (count, index):
            size, stride = self._nodes[name].get_size(), self._nodes[name].get_stride()
            fields.append(self.pointer(name))
            fields += [self._stride_or_zero(size[i], stride[i]) for i in range(2)]
            fields += [self.number(s) for s in stride[2:]]
        return f"{{{', '.join(fields)}}}"

    def _stride_or_zero(self, size: Any, stride: Any) -> str:
        return f"({self.number(size)} == 1 ? 0 : {self.number(stride)})"


def fixed_layout(
    device: torch.device, dtype: torch.dtype, size: Sequence[Any], stride: Sequence[Any]
) -> ir.FixedLayout:
    """A layout with given strides."""
    return ir.FixedLayout(device, dtype, [sympy.sympify(s) for s in size], [sympy.sympify(s) for s in stride])
