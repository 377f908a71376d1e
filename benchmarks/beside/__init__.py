"""Memory and messages of this library beside other ways to train in parallel, each measured alike on a CPU."""
