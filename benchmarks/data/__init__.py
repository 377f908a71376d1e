"""Data sets: fetching, checking and preparing them; cells read what was prepared, and never download."""
