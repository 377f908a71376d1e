"""Runs a cell's ranks and makes its record: on this machine, in containers, or on the nodes of a Slurm job."""
