"""What probes cost, whether they come in time, and how soon a failing endpoint's container is killed."""
