"""How long a pod takes to end, beside the bare calls."""
