"""Device plugins: generated messages, and stubs and bases of their services."""
