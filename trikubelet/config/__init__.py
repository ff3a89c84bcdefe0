"""Configuration of the agent."""
