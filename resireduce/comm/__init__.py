"""Communicators: collectives of plain tensors over the ranks; they know nothing of gradients."""
