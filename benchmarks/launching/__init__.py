"""From a cell to ranks to a record: here, in containers, on the nodes of a Slurm job."""
