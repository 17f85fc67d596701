"""Where compiled artifacts are kept: a directory that only this user can write.

Inductor loads what lies in its cache (pickles, shared libraries), so whoever can write there can run code here.
"""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

import torch_neuronx
from torch_neuronx.config import read_bool
from torch_neuronx.patches import check_inductor_artifacts, keep_precompiled_headers_in

from . import verified_artifacts

DIRECTORY_VARIABLE = "TORCH_NEURONX_NEFF_CACHE_DIR"
DISABLE_VARIABLE = "TORCH_NEURONX_DISABLE_NEFF_CACHE"
INDUCTOR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


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
def compiler_version() -> str:
    """Part of every artifact's key: artifacts of another version of this compiler are not looked at."""
    digest = hashlib.sha256(torch_neuronx.__version__.encode())
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
    """The directory that artifacts go to; one that ends with the process where none can last.

    Raises:
        UnsafeDirectoryError: a variable names a directory that others can write to.
    """
    if read_bool(os.environ, DISABLE_VARIABLE):
        return _private_directory()
    ours = os.environ.get(DIRECTORY_VARIABLE, "").strip()
    theirs = os.environ.get(INDUCTOR_VARIABLE, "").strip()
    # Inductor itself fills its variable in with a directory in /tmp.
    if theirs and theirs not in (_set_here, default_cache_dir()) and not ours:
        directory = Path(theirs).expanduser().absolute()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(directory)
        return directory
    try:
        directory = cache_root() / "compiled"
        directory.mkdir(mode=0o700, exist_ok=True)
    except (OSError, UnsafeDirectoryError) as error:
        if ours:
            raise
        _warn_once(str(error))
        return _private_directory()
    return directory


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"compiled graphs are not kept for the next process: {reason}", stacklevel=3)


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


_set_here: str | None = None  # the value that this module gave Inductor's variable


@functools.cache
def _install_checks() -> None:
    check_inductor_artifacts(verified_artifacts)


def use_cache_directory(directory: Path | None = None) -> None:
    """Tells Inductor to keep its artifacts in `directory`, by default in `cache_directory()`, from now on.

    For the whole process, because AOTAutograd writes an entry when the first backward pass is compiled, long after the
    backend returned. What is compiled for the CPU in this process goes there, too.
    """
    global _set_here
    _install_checks()
    _set_here = str(directory or cache_directory())
    os.environ[INDUCTOR_VARIABLE] = _set_here
    keep_precompiled_headers_in(_set_here)


def use_memory() -> None:
    """For when the disk is full: artifacts end with the process. Warns once."""
    _warn_once("the disk is full")
    use_cache_directory(_memory_directory())
