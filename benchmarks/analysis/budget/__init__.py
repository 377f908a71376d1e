"""What a matrix will cost, from recorded runs: `python -m benchmarks budget`. No torch in here."""
