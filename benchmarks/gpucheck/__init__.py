"""`python -m benchmarks gpu-check`: full-size models on one GPU, from the source tree, in parts of a few minutes."""
