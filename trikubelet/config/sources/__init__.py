"""Pod sources and their merge."""
