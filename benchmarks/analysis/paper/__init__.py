"""The tables and figures of the paper, from the records of a run: published beside measured, and what is missing.

Each is a `Spec` (which parts of config/paper.yaml, which lines, what is measured) and a function that makes its table.
"""
