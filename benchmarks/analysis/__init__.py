"""Turn the records of a run into what people read: tables, figures, pages, verdicts."""
