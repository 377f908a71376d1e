"""Cells as jobs of a Slurm cluster: what the site is like, what a job asks for, how its ranks are started."""
