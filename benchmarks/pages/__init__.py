"""What README and the pages of docs/ say was measured, made from results/reference."""
