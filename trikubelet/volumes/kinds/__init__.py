"""One module for each kind of volume."""
