"""CRI: generated messages (v1) and the two service clients."""
