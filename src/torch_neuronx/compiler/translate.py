"""Inductor's generated wrapper code, made into a program that the core runs without Python.

The generated function is a flat list of statements of a few forms: allocations, views, kernel calls, operator calls,
`del`. Each becomes one step (csrc/graph/step.h). Code that says anything else is run as it is, as a Python function on
the host; `Untranslatable` names the statement, and `get_dynamo_metrics()` shows which graphs that concerns.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torch_neuronx import _C

from .random_operators import DROPOUT_ARGUMENTS, DrawFromDevice, draws, is_random, with_generator

# Operators of these libraries have C++ kernels; those of others may be Python and take the GIL.
NATIVE_NAMESPACES = ("aten", "prims", "inductor", "mkldnn", "onednn", "quantized", "mkl")

# extern_kernels.NAME stands for this overload of aten::NAME.
EXTERN_OVERLOADS = {
    "mm": "out",
    "addmm": "out",
    "bmm": "out",
    "baddbmm": "out",
    "_int_mm": "out",
    "_scaled_mm": "out",
    "_grouped_mm": "default",
    "_weight_int8pack_mm": "default",
    "convolution": "default",
}

_Op = _C._IntegerOp
Expression = int | list[tuple[Any, int]]


class Untranslatable(Exception):  # noqa: N818 (says what it is about, and is no error)
    """The generated code holds something that no step stands for; the message says what."""


@dataclass(frozen=True)
class Tensor:
    slot: int


@dataclass(frozen=True)
class Integer:
    value: Any  # Expression


@dataclass(frozen=True)
class Results:
    """What an operator with several results returned, before it is taken apart."""

    slots: tuple[int, ...]


Variable = Tensor | Integer | Results | None


@dataclass(frozen=True)
class Layout:
    """What is known of a graph besides its code: the kinds of its inputs and results.

    `inputs` has one character an input, "t" for a tensor and "i" for an integer. `results` likewise: "t" for a tensor
    on the device, "h" for one on the host, "i" for an integer and "n" for None.
    """

    inputs: str
    results: str
    device: int


@dataclass
class Program:
    """What `_C._make_program` takes; see csrc/bindings/graph.cpp."""

    name: str
    layout: Layout
    written: list[int]
    slots: int = 0
    registers: int = 0
    draws: int = 0
    constants: list[torch.Tensor] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    results: list[tuple[Any, ...]] = field(default_factory=list)
    host_function: Callable[..., Any] | None = None
    needs_python: bool = False
    data_dependent: bool = False

    def build(self) -> Any:
        return _C._make_program(
            {
                "name": self.name,
                "tensor_inputs": self.layout.inputs.count("t"),
                "integer_inputs": self.layout.inputs.count("i"),
                "slots": self.slots,
                "registers": self.registers,
                "draws": self.draws,
                "constants": self.constants,
                "steps": self.steps,
                "results": self.results,
                "written": self.written,
                "device": self.layout.device,
                "host_function": self.host_function,
                "needs_python": self.needs_python,
                "data_dependent": self.data_dependent,
            }
        )


def translate(source: str, module: ModuleType, name: str, layout: Layout, written: list[int]) -> Program:
    """Translates the wrapper `source`, which was loaded as `module`.

    Raises:
        Untranslatable: a statement that no step stands for.
    """
    return _Translator(source, module, Program(name, layout, written)).run()


def python_program(
    call: Callable[[list[Any]], Any], name: str, layout: Layout, written: list[int], random: bool
) -> Program:
    """A program that calls generated Python code: `call` takes the list of inputs and returns the results.

    `random` says that the code may draw random numbers.
    """
    integer_inputs = layout.inputs.count("i")

    def host_function(tensors: list[torch.Tensor], integers: list[int]) -> tuple[list[torch.Tensor], list[int]]:
        remaining = {"t": iter(tensors), "i": iter(integers)}
        with DrawFromDevice(layout.device) if random else nullcontext():
            results = call([next(remaining[kind]) for kind in layout.inputs])
        pairs = list(zip(layout.results, results, strict=True))
        returned = [int(value) for kind, value in pairs if kind == "i"]
        return [value for kind, value in pairs if kind in "th"], integers[:integer_inputs] + returned

    program = Program(name, layout, written, host_function=host_function, needs_python=True)
    program.registers = integer_inputs
    for kind in layout.results:
        if kind == "i":
            program.results.append(("integer", [(_Op.REGISTER, program.registers)]))
            program.registers += 1
        else:
            program.results.append(("tensor", 0, kind == "h") if kind in "th" else ("none",))
    program.data_dependent = True
    return program


class _Translator:
    def __init__(self, source: str, module: ModuleType, program: Program) -> None:
        self.names = vars(module)
        tree = ast.parse(source)
        self.body = _call_body(tree)
        self.kernels = _kernel_signatures(tree)
        self.program = program
        self.variables: dict[str, Variable] = {}
        self.holders: dict[int, int] = {}  # how many variables stand for a slot
        self.constants: dict[str, Tensor] = {}

    def run(self) -> Program:
        program = self.program
        program.registers = program.layout.inputs.count("i")
        program.slots = program.layout.inputs.count("t")
        self.find_constants()
        for statement in self.body:
            self.statement(statement)
        return program

    def find_constants(self) -> None:
        """Tensors that belong to the graph lie in the slots after the inputs."""
        for statement in self.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.constants:
                    value = self.names.get(node.id)
                    if isinstance(value, torch.Tensor):
                        self.constants[node.id] = Tensor(self.new_slot())
                        self.program.constants.append(value)

    # ---- statements ------------------------------------------------------------------------------------------------

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Tuple() | ast.List() as names], value=ast.Name(id="args")):
                self.inputs([_name(item) for item in names.elts])
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(name, value)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.delete(_name(target))
            case ast.Expr(value=ast.Call() as call):
                self.effect(call)
            case ast.Return(value=ast.Tuple(elts=values)):
                self.results(values)
            case ast.Pass():
                pass
            case _:
                raise Untranslatable(ast.unparse(node).split("\n")[0])

    def inputs(self, names: list[str]) -> None:
        next_tensor = next_integer = 0
        for name, kind in zip(names, self.program.layout.inputs, strict=True):
            if kind == "t":
                self.bind(name, Tensor(next_tensor))
                next_tensor += 1
            else:
                self.bind(name, Integer([(_Op.REGISTER, next_integer)]))
                next_integer += 1

    def assign(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Name() | ast.Subscript():
                self.bind(name, self.variable(value))
            case ast.Constant(value=None):
                self.bind(name, None)
            case ast.Call(func=ast.Attribute(value=source, attr="item"), args=[]):
                register = self.program.registers
                self.program.registers += 1
                self.program.data_dependent = True
                self.program.steps.append(("item", register, self.slot(source)))
                self.bind(name, Integer([(_Op.REGISTER, register)]))
            case ast.Call(func=ast.Name(id="empty_strided_cpu"), args=[sizes, strides, dtype]):
                slot = self.new_slot()
                self.program.steps.append(
                    ("allocate", slot, self.integers(sizes), self.integers(strides), self.constant(dtype))
                )
                self.bind(name, Tensor(slot))
            case ast.Call(func=ast.Name(id="reinterpret_tensor")):
                self.bind(name, Tensor(self.view(value)))
            case ast.Call():
                self.bind(name, self.operator(value))
            case _:
                self.bind(name, Integer(self.integer(value)))

    def effect(self, call: ast.Call) -> None:
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="args"), attr="clear")):
                pass
            case ast.Call(func=ast.Name(id="assert_alignment")):
                pass  # device memory is aligned, and generated kernels load unaligned
            case ast.Call(func=ast.Name(id="assert_size_stride"), args=[tensor, sizes, strides, *rest]):
                self.check_layout(tensor, sizes, strides, rest)
            case ast.Call(func=ast.Name(id="assert_tensor_metadata"), args=[tensor, sizes, strides, dtype, *rest]):
                self.check_layout(tensor, sizes, strides, rest, self.constant(dtype))  # torch 2.14
            case ast.Call(
                func=ast.Name(id="assert_size_stride_grouped"),  # torch 2.14
                args=[ast.Tuple(elts=tensors), ast.Tuple(elts=sizes), ast.Tuple(elts=strides), *rest],
            ):
                for each in zip(tensors, sizes, strides, strict=True):
                    self.check_layout(*each, rest)
            case ast.Call(func=ast.Name(id=name)) if name in self.kernels:
                self.kernel(name, call)
            case _:
                self.operator(call)

    def check_layout(
        self,
        tensor: ast.expr,
        sizes: ast.expr,
        strides: ast.expr,
        rest: list[ast.expr],
        dtype: torch.dtype | None = None,
    ) -> None:
        what = ast.unparse(tensor) + (f" ({self.constant(rest[0])})" if rest else "")
        self.program.steps.append(
            ("check_layout", self.slot(tensor), self.integers(sizes), self.integers(strides), what, dtype)
        )

    def results(self, values: list[ast.expr]) -> None:
        kinds = self.program.layout.results
        if len(values) != len(kinds):
            raise Untranslatable(f"{len(values)} results, but the graph has {len(kinds)}")
        for value, kind in zip(values, kinds, strict=True):
            if isinstance(value, ast.Constant) and value.value is None:
                self.program.results.append(("none",))
            elif self.is_tensor(value):
                self.program.results.append(("tensor", self.slot(value), kind == "h"))
            else:
                self.program.results.append(("integer", self.integer(value)))

    # ---- variables -------------------------------------------------------------------------------------------------

    def new_slot(self) -> int:
        self.program.slots += 1
        return self.program.slots - 1

    def bind(self, name: str, variable: Variable) -> None:
        if name in self.variables:
            self.delete(name)
        self.variables[name] = variable
        for slot in _slots(variable):
            self.holders[slot] = self.holders.get(slot, 0) + 1

    def delete(self, name: str) -> None:
        """Frees what only this name stood for."""
        for slot in _slots(self.variables.pop(name)):
            self.holders[slot] -= 1
            if self.holders[slot] == 0:
                self.program.steps.append(("free", slot))

    def variable(self, node: ast.expr) -> Variable:
        match node:
            case ast.Name(id=name):
                if name in self.variables:
                    return self.variables[name]
                if name in self.constants:
                    return self.constants[name]
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(index))):
                whole = self.variables.get(name)
                if isinstance(whole, Results):
                    return Tensor(whole.slots[index])
        raise Untranslatable(ast.unparse(node))

    def is_tensor(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="reinterpret_tensor")):
                return True
            case ast.Name(id=name):
                return isinstance(self.variables.get(name), Tensor) or name in self.constants
            case ast.Subscript(value=ast.Name(id=name)):
                return isinstance(self.variables.get(name), Results)
        return False

    def slot(self, node: ast.expr) -> int:
        """The slot of a tensor; of a view, a new one."""
        if isinstance(node, ast.Call):
            return self.view(node)
        variable = self.variable(node)
        if not isinstance(variable, Tensor):
            raise Untranslatable(f"{ast.unparse(node)} is not a tensor")
        return variable.slot

    def view(self, node: ast.expr) -> int:
        match node:
            case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[source, sizes, strides, *offset], keywords=[]):
                from_slot = self.slot(source)
                slot = self.new_slot()
                start = self.integer(offset[0]) if offset else 0
                self.program.steps.append(
                    ("view", slot, from_slot, self.integers(sizes), self.integers(strides), start)
                )
                return slot
        raise Untranslatable(ast.unparse(node))

    # ---- values ----------------------------------------------------------------------------------------------------

    def constant(self, node: ast.expr) -> Any:
        """What an expression without the graph's variables is worth: a dtype, an operator, a number, ..."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self.variables:
                raise Untranslatable(ast.unparse(node))
        return eval(compile(ast.Expression(node), "<generated>", "eval"), self.names)

    def integers(self, node: ast.expr) -> list[Expression]:
        if not isinstance(node, ast.Tuple | ast.List):
            raise Untranslatable(ast.unparse(node))
        return [self.integer(item) for item in node.elts]

    def integer(self, node: ast.expr) -> Expression:
        terms = self.terms(node)
        if len(terms) == 1 and terms[0][0] is _Op.CONSTANT:
            return terms[0][1]
        return terms

    def terms(self, node: ast.expr) -> list[tuple[Any, int]]:
        binary = {
            ast.Add: _Op.ADD,
            ast.Sub: _Op.SUBTRACT,
            ast.Mult: _Op.MULTIPLY,
            ast.FloorDiv: _Op.FLOOR_DIVIDE,
            ast.Mod: _Op.MODULO,
        }
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return [(_Op.CONSTANT, value)]
            case ast.Name(id=name) if isinstance(self.variables.get(name), Integer):
                value = self.variables[name].value  # type: ignore[union-attr]
                return [(_Op.CONSTANT, value)] if isinstance(value, int) else list(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return [*self.terms(operand), (_Op.NEGATE, 0)]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in binary:
                return [*self.terms(left), *self.terms(right), (binary[type(op)], 0)]
            case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(power))) if power >= 1:
                return self.terms(base) + [*self.terms(base), (_Op.MULTIPLY, 0)] * (power - 1)
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *others], keywords=[]) if others:
                op = _Op.MINIMUM if name == "min" else _Op.MAXIMUM
                terms = self.terms(first)
                for other in others:
                    terms += [*self.terms(other), (op, 0)]
                return terms
        raise Untranslatable(ast.unparse(node))

    # ---- kernels and operators -------------------------------------------------------------------------------------

    def kernel(self, name: str, call: ast.Call) -> None:
        types = self.kernels[name]
        if len(call.args) != len(types) or len(types) > _C._MAX_KERNEL_ARGUMENTS or call.keywords:
            raise Untranslatable(f"{name} with {len(call.args)} arguments")
        arguments: list[tuple[str, Any]] = []
        temporary = []
        for node, c_type in zip(call.args, types, strict=True):
            if c_type.endswith("*"):
                slot = self.slot(node)
                arguments.append(("tensor", slot))
                if isinstance(node, ast.Call):
                    temporary.append(slot)
            elif c_type in ("const int64_t", "int64_t"):
                arguments.append(("integer", self.integer(node)))
            else:
                raise Untranslatable(f"{name} takes a {c_type}")
        library = self.names[name].__self__.__file__
        self.program.steps.append(("kernel", library, arguments))
        self.free(temporary)

    def free(self, slots: list[int]) -> None:
        self.program.steps.extend(("free", slot) for slot in slots)

    def operator(self, call: ast.Call) -> Variable:
        op = self.resolve(call)
        if op.namespace not in NATIVE_NAMESPACES:
            self.program.needs_python = True
        if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
            self.program.data_dependent = True
        given = self.given(op, call)
        random = self.draws(op, given)
        if random:
            drawing = with_generator(op)
            if drawing is None:
                raise Untranslatable(f"{op} draws from the process's generator")
            op = drawing
        before = self.program.slots
        arguments: list[tuple[str, Any]] = []
        temporary: list[int] = []
        for formal in op._schema.arguments:
            if random and formal.name == "generator":
                arguments.append(("generator", None))
            elif formal.name in given:
                arguments.append(self.argument(formal, given[formal.name]))
            elif formal.has_default_value():
                arguments.append(("constant", formal.default_value))
            else:
                raise Untranslatable(f"{op}: no value for {formal.name}")
        temporary = list(range(before, self.program.slots))
        results, variable = self.operator_results(op)
        name, _, overload = op._schema.name, None, op._schema.overload_name
        self.program.steps.append(("operator", name, overload, arguments, results, self.program.draws))
        if random:
            self.program.draws += 1
        self.free(temporary)
        return variable

    def resolve(self, call: ast.Call) -> OpOverload:
        match call.func:
            case ast.Attribute(value=ast.Name(id="extern_kernels"), attr=name):
                if name not in EXTERN_OVERLOADS:
                    raise Untranslatable(ast.unparse(call.func))
                return getattr(getattr(torch.ops.aten, name), EXTERN_OVERLOADS[name])
        target = self.constant(call.func)
        if isinstance(target, OpOverloadPacket) and target.overloads() == ["default"]:
            target = target.default
        if not isinstance(target, OpOverload):
            raise Untranslatable(ast.unparse(call.func))
        return target

    def given(self, op: OpOverload, call: ast.Call) -> dict[str, ast.expr]:
        formals = [formal for formal in op._schema.arguments if not formal.kwarg_only]
        if len(call.args) > len(formals):
            raise Untranslatable(ast.unparse(call))
        given = {formal.name: node for formal, node in zip(formals, call.args, strict=False)}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise Untranslatable(ast.unparse(call))
            given[keyword.arg] = keyword.value
        known = {formal.name for formal in op._schema.arguments}
        if not given.keys() <= known:
            raise Untranslatable(f"{op} with {sorted(given.keys() - known)}")
        return given

    def draws(self, op: OpOverload, given: dict[str, ast.expr]) -> bool:
        if not is_random(op):
            return False
        constants = {name: self.constant(node) for name, node in given.items() if name in DROPOUT_ARGUMENTS}
        return draws(op, (), constants)

    def argument(self, formal: Any, node: ast.expr) -> tuple[str, Any]:
        if self.is_tensor(node):
            return ("tensor", self.slot(node))
        items = node.elts if isinstance(node, ast.List | ast.Tuple) else []
        if any(self.is_tensor(item) for item in items):
            slots = [None if _is_none(item) else self.slot(item) for item in items]
            optional = "List[Optional[Tensor]]" in str(formal.type)
            return ("optional_tensors" if optional else "tensors", slots)
        if not any(isinstance(part, ast.Name) and part.id in self.variables for part in ast.walk(node)):
            value = self.constant(node)
            if isinstance(value, int | float | complex) and str(formal.type) in ("Tensor", "Optional[Tensor]"):
                raise Untranslatable(f"a number for the tensor {formal.name}")
            return ("constant", value)
        if items:
            return ("integers", self.integers(node))
        return ("integer", self.integer(node))

    def operator_results(self, op: OpOverload) -> tuple[list[int], Variable]:
        returns = op._schema.returns
        if any("List" in str(value.type) for value in returns):
            raise Untranslatable(f"{op} returns a list")
        slots = [self.new_slot() for _ in returns]
        if not slots:
            return [], None
        return slots, Tensor(slots[0]) if len(slots) == 1 else Results(tuple(slots))


def _call_body(tree: ast.Module) -> list[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            return node.body
    raise Untranslatable("no function `call`")


def _kernel_signatures(tree: ast.Module) -> dict[str, list[str]]:
    """The C types of the arguments of each generated kernel."""
    kernels = {}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(attr="cpp_pybinding"), args=[types, *_]),
            ):
                kernels[name] = ast.literal_eval(types)
    return kernels


def _slots(variable: Variable) -> tuple[int, ...]:
    if isinstance(variable, Tensor):
        return (variable.slot,)
    return variable.slots if isinstance(variable, Results) else ()


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise Untranslatable(ast.unparse(node))
    return node.id


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
