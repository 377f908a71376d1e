"""Measure what only a GPU can show, in stretches: `python -m benchmarks measure gpu`."""
