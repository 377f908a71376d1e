"""Ranks in containers: docker, podman, apptainer."""
