"""One run of a folder at a time: a lock that the kernel drops when its process ends, however it ends."""

import fcntl
import os
import socket
from pathlib import Path
from typing import TextIO


class FolderInUse(RuntimeError):
    """Another process is working on the folder, or nobody can; the message says which."""


def lock_folder(folder: str | Path) -> TextIO:
    """Lock folder until the returned file is closed or the process ends. Raises FolderInUse, one line."""
    path = Path(folder) / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise FolderInUse(f"{path} cannot be written: {error.strerror}; choose another run name") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise FolderInUse(f"{folder} is in use by process {owner}; wait for it, or choose another run name") from None
    file.truncate(0)
    file.write(f"{os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def is_locked(folder: str | Path) -> bool:
    """Say whether a process holds the lock of a folder. It is taken and dropped again, shared, if none does."""
    try:
        with (Path(folder) / ".lock").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a disk without locks
        return False
    return False
