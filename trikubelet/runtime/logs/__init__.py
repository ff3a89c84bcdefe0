"""Containers' logs: where they lie, and how they are kept from filling the disk."""
