"""A run compared with committed measurements: `python -m benchmarks check`."""
