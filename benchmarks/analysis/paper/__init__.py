"""The tables and figures of the paper, from the records of a run: published beside measured, and what is missing."""
