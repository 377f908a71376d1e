"""How long a training step would take on a cluster that is described, and not there."""
