"""Models, one family a file; `benchmarks.core.registry.MODELS` has their names."""
