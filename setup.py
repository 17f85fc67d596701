"""What pyproject.toml cannot say: the extension is built by build_core.py, for the torch that is found there."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_core  # lies beside this file, which is not on sys.path in every way of building


class BuildCore(build_ext):
    """Hands the work to ninja; setuptools only says where the file goes and puts it into the wheel."""

    def build_extension(self, ext: Extension) -> None:
        build_core.build()
        build_core.deliver(Path(self.get_ext_fullpath(ext.name)).resolve().parent)

    def copy_extensions_to_source(self) -> None:
        """An editable install: the same place that `python build_core.py` keeps up to date."""
        build_core.deliver(build_core.PACKAGE)


setup(
    ext_modules=[Extension("torch_neuronx._C", sources=[])],
    cmdclass={"build_ext": BuildCore},
    install_requires=[build_core.torch_requirement(), "numpy"],
)
