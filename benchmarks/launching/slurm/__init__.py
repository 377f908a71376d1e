"""Ranks on the nodes of a Slurm job, as a site's file has it."""
