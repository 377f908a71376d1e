"""What a cell is and what comes of it: cells, matrices, recipes, records; all other rooms stand on it."""
