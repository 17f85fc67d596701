"""Loads the core and registers it with PyTorch, once a process, without ever making `import torch` fail.

torch's autoload calls `load` here, and not a function of the package: while another thread imports the package and
waits for torch, this module can be imported, and the package cannot.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

DEVICE_NAME = "neuron"

# What libraries ask a device module for although it begins with an underscore.
_PRIVATE_NAMES = frozenset({"_is_in_bad_fork", "_lazy_call", "_lazy_init", "_sleep"})

# Parts of the package that are imported when they are first asked for.
_LAZY_MODULES = frozenset({"parity", "profiler"})

_BUILD_AGAIN = "build it in this environment: `make setup` in the source tree, or `pip install --force-reinstall .`"

_lock = threading.RLock()
_module: ModuleType | None = None
_failure: Exception | None = None


class NeuronUnavailableError(RuntimeError):
    """The neuron device was used although its core could not be loaded; the cause is chained."""


def load() -> None:
    """Registers the device; later calls do nothing. A failure is kept, and raised when the device is used."""
    global _module, _failure
    # Outside the lock: this waits while another thread imports torch, and that thread may have to come here first.
    import torch

    with _lock:
        if _module is not None:
            return
        try:
            module = _load_core()
        except Exception as error:
            _failure = error
            module = _unavailable_module()
        _module = module
        if not hasattr(torch, DEVICE_NAME):
            # As torch._register_device_module does, but also when another backend has taken the device type.
            setattr(torch, DEVICE_NAME, module)
            sys.modules[f"torch.{DEVICE_NAME}"] = module
        _mirror(module)


def _load_core() -> ModuleType:
    import torch
    from torch.utils import backend_registration

    # First: without a name for the device, nothing could say why the device does not work.
    if torch._C._get_privateuse1_backend_name() != DEVICE_NAME:
        backend_registration.rename_privateuse1_backend(DEVICE_NAME)
    _import_core(torch.__version__)
    module = importlib.import_module(f"{__package__}.torch_module")
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    torch._register_device_module(DEVICE_NAME, module)
    return module


def _import_core(torch_version: str) -> None:
    """Imports torch_neuronx._C. ImportError says what to do."""
    try:
        built_for: str | None = importlib.import_module(f"{__package__}._built_for").TORCH
    except ModuleNotFoundError:  # built by hand, or not at all: the import below tells
        built_for = None
    # Checked before loading: a core for another C++ interface may load and then crash.
    if built_for is not None and built_for.split(".")[:2] != torch_version.split(".")[:2]:
        raise ImportError(
            f"its C++ core was built for torch {built_for}, but torch {torch_version} is installed; {_BUILD_AGAIN}"
        )
    try:
        importlib.import_module(f"{__package__}._C")
    except ModuleNotFoundError as error:
        raise ImportError(f"its C++ core is not built; {_BUILD_AGAIN}") from error
    except ImportError as error:
        raise ImportError(f"its C++ core does not load ({error}); {_BUILD_AGAIN}") from error


def reason() -> str | None:
    """One sentence that says why the device cannot be used, or None when it can."""
    if _failure is None:
        return None
    return f"the neuron device is not available: {_failure or type(_failure).__name__}"


def _raise_unavailable(*_args: object, **_kwargs: object) -> None:
    raise NeuronUnavailableError(reason()) from _failure


def _unavailable_module() -> ModuleType:
    """Stands in for torch.neuron when the core is missing: what PyTorch asks of any device, and the reason for it."""
    module = ModuleType(f"torch.{DEVICE_NAME}", "The neuron device, whose core could not be loaded.")

    def missing(name: str) -> Any:
        # AttributeError, so that PyTorch and libraries which probe with hasattr() go on without the device.
        raise AttributeError(f"torch.{DEVICE_NAME}.{name}: {reason()}", name=name, obj=module) from _failure

    vars(module).update(
        {
            "is_available": lambda: False,
            "is_initialized": lambda: False,
            "device_count": lambda: 0,
            "init": _raise_unavailable,
            # PyTorch calls this when a tensor is made on the device or moved to it.
            "_lazy_init": _raise_unavailable,
            "synchronize": _raise_unavailable,
            "set_device": _raise_unavailable,
            "current_device": _raise_unavailable,
            # torch.manual_seed() calls these for every backend; without a device there is nothing to seed.
            "_is_in_bad_fork": lambda: False,
            "manual_seed": lambda seed: None,
            "manual_seed_all": lambda seed: None,
            "__getattr__": missing,
        }
    )
    return module


def _mirror(module: ModuleType) -> None:
    """Binds torch.neuron's names in the package, over submodules of the same name (torch_neuronx.device)."""
    package = sys.modules[__package__]
    for name in getattr(module, "__all__", ()):
        if name in vars(module):
            setattr(package, name, vars(module)[name])


def public_names() -> list[str]:
    """What `dir(torch_neuronx)` shows besides the names that are bound there."""
    return [*getattr(_module, "__all__", ()), *_LAZY_MODULES]


def find_public(name: str) -> Any:
    """An attribute of torch_neuronx that is not bound there (yet)."""
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__package__}.{name}")
    # The import system asks for submodules in this way before it imports them, and takes an AttributeError for a no.
    is_private = name.startswith("_") or importlib.util.find_spec(f"{__package__}.{name}") is not None
    if _failure is not None and not is_private:
        _raise_unavailable()
    if _module is not None and (not is_private or name in _PRIVATE_NAMES) and hasattr(_module, name):
        return getattr(_module, name)
    raise AttributeError(f"module {__package__!r} has no attribute {name!r}")
