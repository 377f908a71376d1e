"""`python -m benchmarks doctor`: whether cells can run here, and what to do where they cannot. Loads no torch."""
