"""One rank of a cell: `rank` is its process, `build` makes model, data and optimizer, `trainer` trains."""
