"""Gradients and steps of large tensors, made some rows at a time, so that nothing of them is whole (`slices=`)."""
