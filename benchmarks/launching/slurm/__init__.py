"""Runs ranks on the nodes of a Slurm job, as configured in a site's file."""
