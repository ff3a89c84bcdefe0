"""What the agent knows of its node: addresses, and whether the runtime is up."""
