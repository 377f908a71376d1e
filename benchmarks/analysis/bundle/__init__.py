"""The evidence bundle: a run with all that it rests on in one zip, and how to verify one. Imports no torch."""
