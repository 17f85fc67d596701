"""Every place where a function of PyTorch is replaced, with the reason and the version it was checked on."""

from __future__ import annotations

import enum
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.overrides import has_torch_function_unary

from torch_neuronx import _C
from torch_neuronx.devices import DEVICE_TYPE

# The names of the functions replaced so far.
installed: list[str] = []


def install() -> None:
    """Applies all patches, once."""
    if not installed:
        _name_dlpack_device()
        _wait_before_dlpack_export()
        _tell_the_thread_count()
        _wait_before_settings_change()
        _accumulate_losses_as_on_the_cpu()
        _let_flex_attention_in()
        _compile_neuron_graphs_for_neuron()
        _package_neuron_programs_for_neuron()


def _tell_the_thread_count() -> None:
    # To PyTorch the count belongs to the thread that sets it. Autograd's threads and the executors, which run the
    # device's kernels, would keep another one, and results can depend on it. Checked on torch 2.13.0.
    original = torch.set_num_threads

    @functools.wraps(original)
    def set_num_threads(num: int) -> None:
        _C._drain()
        before = torch.get_num_threads()
        original(num)
        _C._set_num_threads(num, threading.current_thread() is threading.main_thread(), before)

    torch.set_num_threads = set_num_threads  # type: ignore[assignment]
    installed.append("torch.set_num_threads")


# Settings of the process that the host's kernels read when they run.
_READ_BY_KERNELS = (
    "_set_mkldnn_enabled",
    "_set_mkldnn_deterministic",
    "_set_default_dtype",
    "_set_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
)


def _wait_before_settings_change() -> None:
    # A launch must run with the settings of its call. They change rarely, so the change waits for what is pending.
    # Checked on torch 2.13.0, where PyTorch's Python code looks these functions up at each call.
    def waits(original: Any) -> Any:
        @functools.wraps(original)
        def setter(*args: Any, **kwargs: Any) -> Any:
            _C._drain()
            return original(*args, **kwargs)

        return setter

    for name in _READ_BY_KERNELS:
        if hasattr(torch._C, name):
            setattr(torch._C, name, waits(getattr(torch._C, name)))
            installed.append(f"torch._C.{name}")

    set_here = torch.set_flush_denormal

    @functools.wraps(set_here)
    def set_flush_denormal(mode: bool) -> bool:
        _C._drain()
        supported = set_here(mode)
        if supported:
            _C._set_flush_denormal(mode)  # to PyTorch, this too belongs to the thread that sets it
        return supported

    torch.set_flush_denormal = set_flush_denormal  # type: ignore[assignment]
    installed.append("torch.set_flush_denormal")


def _accumulate_losses_as_on_the_cpu() -> None:
    # linear_cross_entropy picks how it splits a batch and in which dtype it adds up by the device's type; for a type
    # that it does not know it adds up in half precision. Checked on torch 2.13.0, which has a table, and 2.14.0, which
    # has a function.
    from torch.nn.modules import linear_cross_entropy_options as options

    if hasattr(options, "_AUTO_DEFAULTS"):
        for device_type, dtype in list(options._AUTO_DEFAULTS):
            if device_type == "cpu":
                options._AUTO_DEFAULTS[DEVICE_TYPE, dtype] = options._AUTO_DEFAULTS[device_type, dtype]
    else:
        policy = options._auto_acc_policy  # type: ignore[attr-defined]

        @functools.wraps(policy)
        def auto_acc_policy(device_type: str | None, dtype: torch.dtype) -> str:
            return policy("cpu" if device_type == DEVICE_TYPE else device_type, dtype)

        options._auto_acc_policy = auto_acc_policy  # type: ignore[attr-defined]

    original = options.LinearCrossEntropyOptions._resolve_auto_acc_dtype

    @functools.wraps(original)
    def resolve(dtype: torch.dtype, device: torch.device | None) -> torch.dtype | None:
        on_neuron = device is not None and device.type == DEVICE_TYPE
        return original(dtype, torch.device("cpu") if on_neuron else device)

    options.LinearCrossEntropyOptions._resolve_auto_acc_dtype = staticmethod(resolve)  # type: ignore[method-assign]
    installed.append("torch.nn.modules.linear_cross_entropy_options")


def _let_flex_attention_in() -> None:
    # FlexAttention has a list of the device types that it takes. `import torch` doesn't import it, so this waits until
    # somebody does. Checked on torch 2.13.0.
    def patch(module: ModuleType) -> None:
        original = module._validate_device

        @functools.wraps(original)
        def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if query.device.type != DEVICE_TYPE:
                original(query, key, value)

        module._validate_device = validate_device  # type: ignore[attr-defined]

    _patch_when_imported("torch.nn.attention.flex_attention", patch)
    installed.append("torch.nn.attention.flex_attention._validate_device")


def _compile_neuron_graphs_for_neuron() -> None:
    # `torch.compile(f)` takes Inductor when no backend is named. Graphs on neuron then go to the backend for neuron, as
    # those on cuda go to the code generator for cuda. Checked on torch 2.13.0, which looks it up at each call.
    def patch(module: ModuleType) -> None:
        original = module.compile_fx
        default_inner = module.compile_fx_inner

        @functools.wraps(original)
        def compile_fx(model: Any, inputs: Sequence[Any], inner_compile: Any = default_inner, **kwargs: Any) -> Any:
            from torch_neuronx.compiler.host_inputs import is_about_neuron

            if inner_compile is not default_inner or not is_about_neuron(model, inputs):
                return original(model, inputs, inner_compile, **kwargs)
            from torch_neuronx.compiler.backend import neuron

            settings = kwargs.get("config_patches") or {}
            # What torch.compile's modes say about CUDA graphs concerns cuda only.
            options = {name: value for name, value in settings.items() if not name.startswith("triton.")}
            return neuron(model, inputs, options=options)

        module.compile_fx = compile_fx  # type: ignore[attr-defined]

    _patch_when_imported("torch._inductor.compile_fx", patch)
    installed.append("torch._inductor.compile_fx.compile_fx")


def _package_neuron_programs_for_neuron() -> None:
    # AOTInductor has no way for a device of its own to generate code for the host. Checked on torch 2.13.0, which looks
    # the functions up at each call.
    def patch_compilation(module: ModuleType) -> None:
        original = module.compile_fx_aot
        default_inner = module.compile_fx_inner

        @functools.wraps(original)
        def compile_fx_aot(
            model: Any, inputs: Sequence[Any], inner_compile: Any = default_inner, config_patches: Any = None
        ) -> Any:
            from torch_neuronx.compiler.host_inputs import is_about_neuron

            if inner_compile is not default_inner or not is_about_neuron(model, inputs):
                return original(model, inputs, inner_compile, config_patches)
            from torch_neuronx.compiler.aot_inductor import compile_package_files

            return compile_package_files(original, model, inputs, config_patches)

        module.compile_fx_aot = compile_fx_aot  # type: ignore[attr-defined]

    # The loader asks for facts of the device that the package is for, and so for the interface of the device.
    def patch_loading(module: ModuleType) -> None:
        original = module.get_device_information

        @functools.wraps(original)
        def get_device_information(device_type: str) -> dict[str, str]:
            if device_type == DEVICE_TYPE:
                from torch_neuronx.compiler.device_interface import register_device_interface

                register_device_interface()
            return original(device_type)

        module.get_device_information = get_device_information  # type: ignore[attr-defined]

    # A package's weights lie in the host's memory, and are read from there when others are given.
    def patch_weights(module: ModuleType) -> None:
        original = module.AOTICompiledModel.load_constants

        @functools.wraps(original)
        def load_constants(self: Any, constants_map: dict[str, torch.Tensor], **kwargs: Any) -> None:
            if any(value.device.type == DEVICE_TYPE for value in constants_map.values()):
                if kwargs.get("user_managed"):
                    raise NotImplementedError("load_constants(user_managed=True) takes no neuron tensors")
                constants_map = {name: value.cpu() for name, value in constants_map.items()}
            original(self, constants_map, **kwargs)

        module.AOTICompiledModel.load_constants = load_constants

    _patch_when_imported("torch._inductor.compile_fx", patch_compilation)
    _patch_when_imported("torch._inductor.codecache", patch_loading)
    _patch_when_imported("torch.export.pt2_archive._package", patch_weights)
    installed.append("torch._inductor.compile_fx.compile_fx_aot")
    installed.append("torch._inductor.codecache.get_device_information")
    installed.append("torch.export.pt2_archive._package.AOTICompiledModel.load_constants")


def _patch_when_imported(name: str, patch: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        patch(sys.modules[name])
        return
    for finder in sys.meta_path:
        # Two finders for one module would ask each other.
        if isinstance(finder, _PatchingFinder) and finder.name == name:
            finder.patches.append(patch)
            return
    sys.meta_path.insert(0, _PatchingFinder(name, patch))


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds one module where the others find it, and patches it once it is imported."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.patches = [patch]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (spec for finder in others if (spec := finder.find_spec(fullname, path, target)) is not None)
        spec = next(found, None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                for patch in self.patches:
                    patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def keep_precompiled_headers_in(directory: str) -> None:
    """Moves Inductor's precompiled headers, which every kernel includes, out of a directory with a name that others can
    guess in /tmp. Called when the first graph is compiled. Checked on torch 2.13.0, which has no setting for it."""
    from torch._inductor import codecache

    codecache._HEADER_DIR = os.path.join(directory, "precompiled_headers")
    codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")
    name = "torch._inductor.codecache._HEADER_DIR"
    if name not in installed:
        installed.append(name)


class ArtifactChecks(Protocol):
    """What `check_inductor_artifacts` calls; see compiler/verified_artifacts.py."""

    def check_entries(self, directory: str) -> None: ...
    def check_source(self, path: str, content: str | bytes) -> bool: ...
    def check_library(self, path: str) -> None: ...
    def note_library(self, path: str) -> None: ...


def check_inductor_artifacts(checks: ArtifactChecks) -> None:
    """Inductor trusts what it finds in its cache. From now on each file is checked before it is used.

    Called when the first graph is compiled. Checked on torch 2.13.0.
    """
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._inductor import codecache

    def checks_entries(cache: Any) -> None:
        original = cache._get_tmp_dir_for_key.__func__

        def directory_for_key(cls: Any, key: str) -> str:
            directory = original(cls, key)
            checks.check_entries(directory)
            return directory

        cache._get_tmp_dir_for_key = classmethod(directory_for_key)
        installed.append(f"{cache.__module__}.{cache.__name__}._get_tmp_dir_for_key")

    checks_entries(codecache.FxGraphCache)
    checks_entries(AOTAutogradCache)

    write = codecache.write

    @functools.wraps(write)
    def checked_write(content: str | bytes, extension: str, *args: Any, **kwargs: Any) -> tuple[str, str]:
        key, path = write(content, extension, *args, **kwargs)
        if not checks.check_source(path, content):
            codecache.write_atomic(path, content, make_dirs=True)
        if extension == "main.cpp":
            checks.check_library(path.removesuffix("cpp") + "so")
        return key, path

    codecache.write = checked_write
    installed.append("torch._inductor.codecache.write")

    write_to_disk = codecache.CompiledFxGraph.write_to_disk

    @functools.wraps(write_to_disk)
    def checked_write_to_disk(self: Any) -> str:
        path = codecache.get_path(self.cache_key, "py")[2]
        if os.path.exists(path):
            checks.check_source(path, self.source_code)
        return write_to_disk(self)

    codecache.CompiledFxGraph.write_to_disk = checked_write_to_disk  # type: ignore[method-assign]
    installed.append("torch._inductor.output_code.CompiledFxGraph.write_to_disk")

    load = codecache.CppPythonBindingsCodeCache._load_library_inner.__func__  # type: ignore[attr-defined]

    def noted_load(cls: Any, path: str, key: str) -> Any:
        library = load(cls, path, key)
        checks.note_library(path)
        return library

    codecache.CppPythonBindingsCodeCache._load_library_inner = classmethod(noted_load)  # type: ignore[assignment]
    installed.append("torch._inductor.codecache.CppPythonBindingsCodeCache._load_library_inner")


def _name_dlpack_device() -> None:
    # PyTorch's method knows the device type by the name "privateuse1" only and raises for any other name.
    # Checked on torch 2.13.0.
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type == DEVICE_TYPE and not has_torch_function_unary(self):
            return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index
        return original(self)

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
    installed.append("torch.Tensor.__dlpack_device__")


def _wait_before_dlpack_export() -> None:
    # A consumer of a DLPack capsule knows no stream of ours (the protocol has them for cuda and rocm only), so what is
    # pending must be done before the memory is handed out. Checked on torch 2.13.0.
    export_method = torch.Tensor.__dlpack__
    export_function = torch.utils.dlpack.to_dlpack

    @functools.wraps(export_method)
    def dlpack(self: torch.Tensor, **kwargs: Any) -> Any:
        _wait_for(self)
        return export_method(self, **kwargs)

    @functools.wraps(export_function)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        _wait_for(tensor)
        return export_function(tensor)

    torch.Tensor.__dlpack__ = dlpack  # type: ignore[method-assign]
    torch.utils.dlpack.to_dlpack = to_dlpack  # type: ignore[assignment]
    torch.to_dlpack = to_dlpack  # type: ignore[assignment]
    installed.extend(["torch.Tensor.__dlpack__", "torch.utils.dlpack.to_dlpack", "torch.to_dlpack"])


def _wait_for(tensor: torch.Tensor) -> None:
    if tensor.device.type == DEVICE_TYPE and _C.is_started():
        _C.synchronize(tensor.device.index)
