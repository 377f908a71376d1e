"""Measure what only a GPU can show, in stretches: `python -m benchmarks gpu-check`."""
