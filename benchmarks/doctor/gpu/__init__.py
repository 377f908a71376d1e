"""What only a GPU can show, stretch by stretch: `python -m benchmarks gpu-check`."""
