"""From a crash to the restart, and what an agent without work costs."""
