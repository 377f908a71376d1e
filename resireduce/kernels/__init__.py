"""Selects, counts, packs and encodes elements: plain torch, C compiled when needed, Triton on a GPU."""
