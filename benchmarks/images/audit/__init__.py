"""Bills of materials and known vulnerabilities of what the images are made of, by standard tools."""
