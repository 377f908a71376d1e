"""The programs of the Slurm cluster for tests (slurm/testbed), where the machine lacks them. Imports no torch."""

import argparse
import sys

from benchmarks.rig.debian import Tool, unpacked
from resireduce.errors import ConfigError

SLURM = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2")
PROGRAMS = Tool(SLURM)
# Fetch Slurm's packages again: packages fetched on two days may differ in version.
WITH_ACCOUNTING = Tool((*SLURM, "slurmdbd", "mariadb-server"))


def main(arguments: list[str] | None = None) -> int:
    """Print the folder of the programs, fetched if they are not there; its usr is to be laid over the machine's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rig.testbed", description=main.__doc__)
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB")
    args = parser.parse_args(arguments)
    tool = WITH_ACCOUNTING if args.accounting else PROGRAMS
    try:
        print(unpacked(tool))
    except ConfigError as error:
        print(f"error: testbed: {', '.join(tool.packages)}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
