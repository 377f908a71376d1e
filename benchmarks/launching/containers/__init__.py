"""Ranks in containers: docker, apptainer."""
