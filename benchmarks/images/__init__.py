"""Container images: how they are built, what is in them, and how a cell runs in one."""
