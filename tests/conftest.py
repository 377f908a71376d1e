"""What all tests share."""

import sys

from hypothesis import settings

# Optimizers of others (Makefile): behind all else, and not in the environment, whose processes would load them.
sys.path.append(f"{sys.prefix}/optimizers")

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("suite")
