"""How long pods take to start and to end in a cluster, beside the bare calls."""
