"""Residuals: what was not sent, and how much of it is stored."""
