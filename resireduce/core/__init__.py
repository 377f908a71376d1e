"""The core: from a gradient to its update. optimizer, hooks, slot, step, feedback, queue, messages, update."""
