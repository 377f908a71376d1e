"""One rank of this library beside other ways to train in parallel."""
