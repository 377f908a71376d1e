"""Cells, matrices, recipes and records; all other packages of the suite build on this one."""
