"""Speed benchmarks: this library compared with others, and streamed with kept gradients."""
