"""What README and docs say was measured, written from results/reference: `python -m benchmarks readme`."""
