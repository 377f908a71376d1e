"""Data sets: fetching, checking and preparing them; cells read prepared data only, and never download."""
