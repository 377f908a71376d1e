"""Bills of materials and known vulnerabilities of the images' packages, by standard tools."""
