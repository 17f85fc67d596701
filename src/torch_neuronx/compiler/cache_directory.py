"""Where compiled artifacts are kept: a directory that only this user can write.

Inductor loads what lies in its cache (pickles, shared libraries), so whoever can write there can run code here.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
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
from torch_neuronx.patches import check_inductor_artifacts, keep_precompiled_headers_in

from . import verified_artifacts

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
    for source in sorted(Path(__file__).parent.rglob("*.py")):
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


_open = 0  # nested scopes of artifacts_kept


@functools.cache
def _install_checks() -> None:
    check_inductor_artifacts(verified_artifacts, lambda: _open > 0)


def disk_is_full(error: BaseException | None) -> bool:
    """True when the error, or one behind it, says that nothing more can be written."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            return True
        if os.strerror(errno.ENOSPC) in str(error):  # what the C++ compiler printed
            return True
        error = error.__cause__ or error.__context__
    return False


@functools.cache
def _memory_directory() -> Path:
    shared_memory = Path("/dev/shm")
    parent = shared_memory if os.access(shared_memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="torchneuron-", dir=parent))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def artifacts_in_memory() -> contextlib.AbstractContextManager[None]:
    """The same as artifacts_kept, for when the disk is full: the artifacts end with the process. Warns once."""
    _warn_once("the disk is full")
    return artifacts_kept(_memory_directory())


@contextlib.contextmanager
def artifacts_kept(directory: Path | None = None) -> Iterator[None]:
    """While open, Inductor reads and writes its artifacts in `directory`, by default in `cache_directory()`.

    Compilation is serialised by Dynamo's lock, so that no other one sees the variable changed.
    """
    global _open
    _install_checks()
    before = os.environ.get(_INDUCTOR_VARIABLE)
    chosen = str(directory or cache_directory())
    os.environ[_INDUCTOR_VARIABLE] = chosen
    keep_precompiled_headers_in(chosen)
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if before is None:
            os.environ.pop(_INDUCTOR_VARIABLE, None)
        else:
            os.environ[_INDUCTOR_VARIABLE] = before
