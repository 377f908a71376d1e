"""Read what `python -m benchmarks gpu-check` has measured on one GPU, and refuse what is no evidence of one."""
