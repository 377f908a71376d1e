"""From the records of a run to what people read."""
