"""Fast selection."""
