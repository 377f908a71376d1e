"""Programs that images need beside Python: of this machine, or Debian's packages unpacked into the user's cache."""

import shutil

from resireduce.errors import ConfigError


def command(name: str) -> list[str]:
    """Return how to call a program, as the beginning of a command line. Raises ConfigError, one line with the cure."""
    found = shutil.which(name)
    if found is None:
        raise ConfigError(f"{name}: not on PATH; install it")
    return [found]
