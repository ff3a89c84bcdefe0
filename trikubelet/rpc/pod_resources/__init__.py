"""The pod resources API: generated messages of both versions."""
