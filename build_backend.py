"""PEP 517 backend: setuptools, plus the choice of the torch to build against.

The C++ core has to be compiled for the torch it will run with. When the environment that asks for the build has a
supported torch, that one is used and none is downloaded into pip's build environment.
"""

from __future__ import annotations

import shutil
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  hooks of the backend, taken over as they are
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

import build_core

ConfigSettings = dict[str, Any] | None


def _with_torch(requirements: list[str]) -> list[str]:
    return requirements if build_core.find_torch() else [*requirements, build_core.TORCH_DEFAULT]


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    return _with_torch(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    return _with_torch(build_meta.get_requires_for_build_editable(config_settings))


def build_wheel(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    # setuptools would also pack modules that an earlier build left there and that exist no more.
    for leftover in (build_core.ROOT / "build").glob("lib*"):
        shutil.rmtree(leftover)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
