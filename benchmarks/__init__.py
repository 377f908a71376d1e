"""The experiments: models, tasks, the matrix of cells, and the reports made of their records."""
