"""Lossy compressors of gradients: one algorithm, one file."""
