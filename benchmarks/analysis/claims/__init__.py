"""Claims of the paper and our own, and what a run shows about each."""
