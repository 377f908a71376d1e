"""Speed: this library beside others, streamed beside kept."""
