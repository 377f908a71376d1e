"""What all tests share."""

from hypothesis import settings

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("suite")
