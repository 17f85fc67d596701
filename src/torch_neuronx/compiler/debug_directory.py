"""The stages of each compiled graph as files, when TORCH_NEURONX_DEBUG_DIR asks for them."""

from __future__ import annotations

import os
import pprint
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

DIRECTORY_VARIABLE = "TORCH_NEURONX_DEBUG_DIR"


class DebugFiles:
    """Collects the stages of one graph until its name is known."""

    def __init__(self) -> None:
        directory = os.environ.get(DIRECTORY_VARIABLE, "").strip()
        self.directory = Path(directory).expanduser() if directory else None
        self.stages: dict[str, str] = {}

    def graph(self, stage: str, gm: GraphModule) -> None:
        if self.directory is not None:
            text = gm.print_readable(print_output=False, include_stride=True, include_device=True)
            self.stages[f"{stage}.py"] = text

    def write(self, name: str, source: str, steps: list[Any]) -> None:
        """Writes `<directory>/<pid>/<name>/`: the graphs noted so far, the generated code and the steps made from it.

        Raises:
            OSError: the directory can't be written to.
        """
        if self.directory is None:
            return
        folder = self.directory / str(os.getpid()) / name
        folder.mkdir(parents=True, exist_ok=True)
        files = {**self.stages, "generated.py": source, "steps.txt": pprint.pformat(steps, width=140)}
        for file, text in files.items():
            (folder / file).write_text(text)
        self.stages = {}
