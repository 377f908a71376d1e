"""The regression check: a run against committed measurements. Imports no torch."""
