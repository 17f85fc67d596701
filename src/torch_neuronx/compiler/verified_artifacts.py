"""Checks what lies in the artifact cache before it is loaded: a damaged or foreign file is dropped and made again.

Entries (pickles) are named by the hash of their content; generated sources are compared with what was generated; the
shared libraries built from them have their hash beside them. A library without one is somebody else's, or was left by a
process that was killed while it compiled.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

from torch._inductor.codecache import sha256_hash

# How long a library without a hash may belong to a process that has compiled it and is about to write the hash.
GRACE_SECONDS = 10.0

_lock = threading.Lock()
_rebuilt = 0


def rebuilt_artifacts() -> int:
    """How many damaged or foreign files this process found in the cache; each was made again."""
    return _rebuilt


def check_entries(directory: str) -> None:
    """Drops the entries of a directory whose content is not what their name says."""
    if not os.path.isdir(directory):
        return
    for path in Path(directory).iterdir():
        if not path.name.startswith(".") and path.is_file() and sha256_hash(path.read_bytes()) != path.name:
            _drop(path)


def check_source(path: str, content: str | bytes) -> bool:
    """True when a generated source file holds what was generated; otherwise it is dropped."""
    expected = content if isinstance(content, bytes) else content.encode()
    if Path(path).read_bytes() == expected:
        return True
    _drop(Path(path))
    return False


def check_library(path: str) -> None:
    """Drops a shared library that does not have the hash that was noted when it was built."""
    library, noted = Path(path), _hash_file(path)
    if not library.exists():
        return
    end = library.stat().st_mtime + GRACE_SECONDS
    while not noted.exists() and time.time() < end:
        time.sleep(0.05)
    if noted.exists() and noted.read_text() == _digest(library):
        return
    noted.unlink(missing_ok=True)
    _drop(library)


def note_library(path: str) -> None:
    """Notes the hash of a library that was just built."""
    noted = _hash_file(path)
    if noted.exists():
        return
    draft = noted.with_name(f".{noted.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(_digest(Path(path)))
    draft.replace(noted)


def _hash_file(path: str) -> Path:
    return Path(path + ".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _drop(path: Path) -> None:
    global _rebuilt
    path.unlink(missing_ok=True)
    with _lock:
        _rebuilt += 1
