"""Tasks: data, loss and metric, one file each; `benchmarks.core.registry.TASKS` has their names."""
