"""The tables and figures of the paper, from the records of a run: published beside measured, and what is missing.

Each has a `Spec` (parts of config/paper.yaml, lines, measured quantity) and a function that makes its table.
"""
