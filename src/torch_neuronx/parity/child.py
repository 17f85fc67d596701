"""One run of the script on one device. Started by its path, in a process of its own, by launch.py.

It must not import torch_neuronx unless the device asks for it: in the run on the CPU the device is not there at all.
"""

from __future__ import annotations

import importlib.util
import json
import linecache
import logging
import os
import random
import runpy
import sys
import traceback
import types
import weakref
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PENDING_LOSSES = 256  # losses kept on the device before they are read, so that watching does not stop the run each step


def load_records() -> types.ModuleType:
    """The module records.py, loaded by its path, as this package may not be imported here."""
    spec = importlib.util.spec_from_file_location("torch_neuronx_parity_records", HERE / "records.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare(job: dict[str, Any]) -> None:
    """Makes the device, the seed and the threads what the job says."""
    import numpy as np
    import torch

    device = torch.device("cpu")
    if job["device"] == "cpu":
        hide_accelerator()
    else:
        import torch_neuronx  # noqa: F401 - PyTorch loads it by itself only where the package is installed

        device = torch.device(job["device"])
        if not torch.accelerator.is_available():
            torch.zeros(1, device=device)  # raises, and says why
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
    torch.set_num_threads(job["threads"])
    random.seed(job["seed"])
    np.random.seed(job["seed"])
    torch.manual_seed(job["seed"])
    if job["set_default_device"]:
        torch.set_default_device(device)


def hide_accelerator() -> None:
    """Lets torch.accelerator say that there is none, also when the script imports torch_neuronx for its own purposes.

    A patch of PyTorch, in this process only: PyTorch has no switch for it. Checked with torch 2.13.
    """
    import torch

    def is_available() -> bool:
        return False

    def current_accelerator(check_available: bool = False) -> None:
        return None

    def device_count() -> int:
        return 0

    for function in (is_available, current_accelerator, device_count):
        setattr(torch.accelerator, function.__name__, function)


class Watch:
    """Records what a training script does not print: every loss in full precision, and the parameters at the end."""

    def __init__(self, records: types.ModuleType) -> None:
        self.records = records
        self.losses: list[tuple[str, Any]] = []
        self.optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # By number of the optimizer. The script's own variables may be gone at its end, so these keep the tensors.
        self.parameters: dict[int, tuple[str, list[Any]]] = {}

    def start(self) -> None:
        """Begins to watch losses, optimizers and log messages."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self.after_step)
        logging.setLogRecordFactory(self.log_record)

        # A patch of PyTorch, in this process only: there is no hook for the start of a backward pass.
        # Checked with torch 2.13, where Tensor.backward looks this function up at each call.
        backward = torch.autograd.backward

        def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.before_backward(tensors)
            return backward(tensors, *args, **kwargs)

        torch.autograd.backward = watched_backward

    def before_backward(self, tensors: Any) -> None:
        """Keeps a copy of each loss that a backward pass starts from."""
        import torch

        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
                # A copy in the queue of the device: later in-place operations cannot change it, and nothing waits.
                self.losses.append((f"loss at {place_in_script()}", tensor.detach().clone()))
        if len(self.losses) >= PENDING_LOSSES:
            self.write_losses()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Notes the parameters of an optimizer."""
        number = self.optimizers.setdefault(optimizer, len(self.parameters) + 1)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.parameters[number] = (f"{type(optimizer).__name__} {number}", parameters)

    def log_record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        """Makes a log record as logging does, and records its message."""
        record = logging.LogRecord(*args, **kwargs)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit: logging itself reports it, and the script goes on
            return record
        self.records.append("message", record.name, message)
        return record

    def write_losses(self) -> None:
        """Records the losses kept so far, which waits for the device."""
        losses, self.losses = self.losses, []
        for name, loss in losses:
            self.records.append("loss", name, loss)

    def finish(self) -> None:
        """Records what is left at the end: losses, and every parameter."""
        self.write_losses()
        for name, parameters in self.parameters.values():
            for index, parameter in enumerate(parameters):
                self.records.append("parameter", f"parameter {index} {tuple(parameter.shape)} of {name}", parameter)


def place_in_script() -> str:
    """The file and line of the script that is running now, as "train.py:12"."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if f"{os.sep}torch{os.sep}" not in name and name != __file__:
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def run_script(path: str, arguments: list[str]) -> None:
    """As `python path arguments` does, except that relative imports work where the script lies in a package."""
    script = Path(path).resolve()
    package: list[str] = []
    root = script.parent
    while (root / "__init__.py").exists():
        package.insert(0, root.name)
        root = root.parent
    sys.path.insert(0, str(script.parent))
    if package:
        sys.path.insert(1, str(root))
    sys.argv = [path, *arguments]

    main = types.ModuleType("__main__")
    main.__file__ = str(script)  # processes that the script spawns import it again from here
    main.__package__ = ".".join(package)
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    linecache.checkcache(str(script))
    exec(compile(script.read_bytes(), str(script), "exec"), vars(main))


def bytes_allocated(device: str) -> int:
    """Bytes ever allocated on all devices of this kind by this process."""
    import torch

    if device == "cpu":
        return 0
    stats = (torch.accelerator.memory_stats(index) for index in range(torch.accelerator.device_count()))
    return sum(stat.get("allocated_bytes.all.allocated", 0) for stat in stats)


def main() -> int:
    """Runs the job in the first argument; returns the exit code of the script."""
    job = json.loads(sys.argv[1])
    del sys.path[0]  # the folder of this file, whose names must not hide the script's
    prepare(job)
    watch = None
    if job["watch"]:
        watch = Watch(load_records())
        watch.start()
    try:
        if job["is_module"]:
            sys.path.insert(0, os.getcwd())
            sys.argv = [job["script"], *job["arguments"]]
            runpy.run_module(job["script"], run_name="__main__", alter_sys=True)
        else:
            run_script(job["script"], job["arguments"])
    except SystemExit:
        raise
    except BaseException:
        kind, error, trace = sys.exc_info()
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(kind, error, trace)
        return 1
    finally:
        if watch is not None:
            watch.finish()
        Path(job["result"]).write_text(json.dumps({"bytes_allocated": bytes_allocated(job["device"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
