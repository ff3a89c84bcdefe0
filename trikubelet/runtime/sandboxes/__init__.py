"""The sandbox of a pod: its configuration, network settings, host name, and the ids of its user namespace."""
