"""Makes the container runtime match a pod."""
