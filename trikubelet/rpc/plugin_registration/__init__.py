"""Registration of plugins: generated messages, and the stub of what a plugin answers."""
