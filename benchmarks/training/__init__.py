"""What one rank of a cell does: `rank` is its process; `build` makes what it trains, `trainer` trains it."""
