"""From a run's records to tables, figures and one page: JSON in, files out. No torch in here."""
