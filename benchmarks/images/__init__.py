"""Images that cells run in: their lock files, and what is known of the packages in them."""
