"""`python -m benchmarks doctor --slurm`: what works on this cluster, without a job. No torch."""
