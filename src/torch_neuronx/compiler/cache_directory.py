"""Where compiled artifacts are kept: a directory that only this user can write.

Inductor loads what lies in its cache (pickles, shared libraries), so whoever can write there can run code here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

import torch_neuronx
from torch_neuronx.config import read_bool
from torch_neuronx.patches import keep_precompiled_headers_in

DIRECTORY_VARIABLE = "TORCH_NEURONX_NEFF_CACHE_DIR"
DISABLE_VARIABLE = "TORCH_NEURONX_DISABLE_NEFF_CACHE"
_INDUCTOR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class UnsafeDirectoryError(RuntimeError):
    """The cache directory is not this user's own, or others can write to it."""


def cache_root() -> Path:
    """The directory as the variables say, made if need be: TORCH_NEURONX_NEFF_CACHE_DIR, else `torchneuron` in
    XDG_CACHE_HOME, else `~/.cache/torchneuron`.

    Raises:
        UnsafeDirectoryError: it belongs to someone else, or others can write to it or to a directory above it.
        OSError: it can't be made.
    """
    chosen = os.environ.get(DIRECTORY_VARIABLE, "").strip()
    if chosen:
        root = Path(chosen).expanduser().absolute()
    else:
        home = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
        root = Path(home).expanduser().absolute() / "torchneuron"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(root)
    return root


def check_private(directory: Path) -> None:
    """Raises UnsafeDirectoryError unless only this user (or root) can change what lies under `directory`."""
    resolved = directory.resolve()
    status = resolved.stat()
    if status.st_uid != os.getuid():
        raise UnsafeDirectoryError(f"the cache directory {resolved} belongs to user {status.st_uid}, not to this one")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeDirectoryError(
            f"others can write to the cache directory {resolved} (mode {stat.S_IMODE(status.st_mode):o}); "
            f"`chmod 700` it, or set {DIRECTORY_VARIABLE} to another one"
        )
    for parent in resolved.parents:
        status = parent.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid not in (0, os.getuid()) or (shared and not status.st_mode & stat.S_ISVTX):
            raise UnsafeDirectoryError(
                f"others can replace the cache directory {resolved}, because they can write to {parent}; "
                f"set {DIRECTORY_VARIABLE} to another one"
            )


@functools.cache
def _version_key() -> str:
    """Artifacts of another torch, or of another version of this compiler, are not looked at."""
    digest = hashlib.sha256(f"{torch.__version__} {torch_neuronx.__version__}".encode())
    folder = Path(__file__).parent
    for source in sorted([*folder.rglob("*.py"), *folder.rglob("*.h")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _private_directory() -> Path:
    """For this process alone, where there is no safe place that lasts."""
    directory = Path(tempfile.mkdtemp(prefix="torchneuron-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def cache_directory() -> Path:
    """The directory that artifacts of this version go to; one that ends with the process where none can last.

    Raises:
        UnsafeDirectoryError: TORCH_NEURONX_NEFF_CACHE_DIR names a directory that others can write to.
    """
    if read_bool(os.environ, DISABLE_VARIABLE):
        return _private_directory()
    try:
        directory = cache_root() / "compiled" / _version_key()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, UnsafeDirectoryError) as error:
        if os.environ.get(DIRECTORY_VARIABLE, "").strip():
            raise
        _warn_once(str(error))
        return _private_directory()
    return directory


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"compiled graphs are not kept for the next process: {reason}", stacklevel=3)


@contextlib.contextmanager
def artifacts_kept() -> Iterator[None]:
    """While open, Inductor reads and writes its artifacts in `cache_directory()`.

    Compilation is serialised by Dynamo's lock, so that no other one sees the variable changed.
    """
    before = os.environ.get(_INDUCTOR_VARIABLE)
    directory = str(cache_directory())
    os.environ[_INDUCTOR_VARIABLE] = directory
    keep_precompiled_headers_in(directory)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_INDUCTOR_VARIABLE, None)
        else:
            os.environ[_INDUCTOR_VARIABLE] = before
