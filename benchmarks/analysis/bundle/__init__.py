"""The evidence bundle: a run with everything it rests on in one zip, and how to verify it. Imports no torch."""
