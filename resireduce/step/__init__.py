"""The way of a gradient through one step: from the hook that brings it to the update of its parameter."""
