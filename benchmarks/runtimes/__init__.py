"""How ranks are started: as processes of this machine, or each in a container of an image."""
