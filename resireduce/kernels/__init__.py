"""Selects, counts, packs and encodes elements: plain torch and NumPy, C compiled when needed, Triton on a GPU."""
