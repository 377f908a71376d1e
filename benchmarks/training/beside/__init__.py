"""Compares this library with other ways to train in parallel, one rank at a time."""
