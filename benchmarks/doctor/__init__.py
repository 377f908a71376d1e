"""`python -m benchmarks doctor`: check whether cells can run here, and say how to fix what fails. Loads no torch."""
