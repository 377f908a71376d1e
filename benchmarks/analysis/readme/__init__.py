"""Write the measured passages of README and docs from results/reference: `python -m benchmarks readme`."""
