"""`python -m benchmarks.images.audit`, which needs the audit's tools and not the suite's environment."""

import argparse
import sys

from benchmarks.images.audit.audit_command import add_arguments, main
from resireduce.errors import ConfigError

if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m benchmarks.images.audit", description=main.__doc__)
    add_arguments(options)
    try:
        sys.exit(main(options.parse_args()))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
