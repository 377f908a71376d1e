"""Observations of cells, one file each; OBSERVATIONS and WATCHES of `benchmarks.core.registry` have their names."""
