"""Merging rules, and the times of the first steps that some of them need."""
