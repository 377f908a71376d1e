"""What a cell can observe, one file each; OBSERVATIONS and WATCHES of `benchmarks.core.registry` have their names."""
