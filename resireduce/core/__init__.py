"""The core: from a gradient to its update. optimizer, hooks, step, bucket, feedback, messages, update."""
