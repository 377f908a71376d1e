"""What a cell can observe, one file each; `benchmarks.core.registry.OBSERVATIONS` has their names."""
