"""The Container Storage Interface: generated messages, and stubs and bases of its services (v1)."""
