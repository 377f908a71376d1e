"""Gradients and updates of large tensors, some rows at a time, so that none exists as a whole (`slices=`)."""
