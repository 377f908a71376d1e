"""Gradients and updates of large tensors, some rows at a time, so that no whole gradient or average exists
(`slices=`)."""
