"""Rules of the workflow by topic, and the functions they use. No torch in here."""
