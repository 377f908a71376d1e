"""Compare a run with committed measurements: `python -m benchmarks check`."""
