"""Container images: building them, their contents, and running commands in them."""
