"""Tables and figures of a run, one file each."""
