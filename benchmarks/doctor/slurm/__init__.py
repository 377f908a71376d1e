"""`python -m benchmarks doctor --slurm`: what works on this cluster, by a small job for each partition. No torch."""
