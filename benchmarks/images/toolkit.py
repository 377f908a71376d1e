"""The CUDA compiler for the builder of an image, from one of Debian's packages, where no base has it."""

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.checks import known_keys
from benchmarks.files import file_hash, load_json
from benchmarks.images.debian import Apt, cache_folder
from resireduce.errors import ConfigError

KEYS = ("package", "version", "suite", "components", "sha256")


def fetch_toolkit(lock: Path) -> Path:
    """Return a folder that holds the package named in a file {package, version, suite, components, sha256}.

    Raises ConfigError, one line, if it cannot be had with that hash.
    """
    pin = _read(lock)
    folder = cache_folder() / "wheels" / f"{pin['package']}-{pin['sha256'][:12]}"
    if folder.exists():
        return folder
    print(f"Fetching {pin['package']} {pin['version']} (the CUDA compiler), once ...", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        apt = Apt(Path(temporary) / "apt", pin["suite"], pin["components"])
        (file,) = apt.fetch([f"{pin['package']}={pin['version']}"], dependencies=False)
        if (found := file_hash(file)) != pin["sha256"]:
            raise ConfigError(f"{lock}: {file.name} has the hash {found}, not {pin['sha256']}; see that file's version")
        new = Path(temporary) / "new"
        new.mkdir()
        shutil.move(file, new / file.name)
        shutil.move(new, folder)
    return folder


def _read(lock: Path) -> dict[str, str]:
    try:
        pin = known_keys(str(lock), load_json(lock), KEYS)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{lock}: {error}; it is part of the project: git checkout brings it back") from None
    if missing := [key for key in KEYS if not isinstance(pin.get(key), str)]:
        raise ConfigError(f"{lock}: {', '.join(missing)}: missing or no text; git checkout brings it back")
    return pin
