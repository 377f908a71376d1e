"""Estimate what a matrix will cost, from recorded runs: `python -m benchmarks budget`. Imports no torch."""
