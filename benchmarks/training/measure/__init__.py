"""Measurements of a cell: context managers and functions that return dataclasses with units in the names."""
