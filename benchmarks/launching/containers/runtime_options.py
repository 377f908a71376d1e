"""The options that choose a runtime and an image. The code that finds them is imported only when it is needed."""

import argparse

from benchmarks.core.run_config import NETWORKS, RUNTIMES
from benchmarks.launching.containers.runtime import Runtime
from resireduce.errors import ConfigError, choose


def add_runtime_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--runtime", default="none", help=f"what runs an image: {', '.join(RUNTIMES)} (default: none)")
    text = "what the runtime runs: a name in containers/images.lock.json, or an image's own JSON"
    parser.add_argument("--image", metavar="NAME|FILE", help=text)
    parser.add_argument("--network", help=f"network in the image: {', '.join(NETWORKS)} (default: none)")


def asked_runtime(args: argparse.Namespace) -> Runtime | None:
    """Return the runtime that the options ask for; None: this machine's own python.

    Raises ConfigError, one line with the cure, for options that contradict each other or cannot be used here:
    `benchmarks.launching.containers.choose.find_runtime`.
    """
    name = choose("runtime", args.runtime, RUNTIMES)
    if name == "none":
        for option in ("image", "network"):
            if (given := getattr(args, option)) is not None:
                raise ConfigError(
                    f"{option}: {given!r} is of no use with --runtime none; give --runtime "
                    f"{', '.join(RUNTIMES[1:-1])} or {RUNTIMES[-1]}, or leave it out"
                )
        return None
    network = choose("network", args.network or "none", NETWORKS)
    if not args.image:
        raise ConfigError(
            f"image: missing with --runtime {name}; give a name in containers/images.lock.json, or an image's JSON"
        )
    from benchmarks.launching.containers.choose import find_runtime

    return find_runtime(name, args.image, network)
