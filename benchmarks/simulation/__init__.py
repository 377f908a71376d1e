"""Simulate how long a training step would take on a cluster that is only described."""
