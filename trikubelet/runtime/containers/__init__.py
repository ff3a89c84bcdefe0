"""One container: everything that its start needs, in CRI's terms, and what runs for it.

`container.py` tells the story of a start: it builds the container's configuration from `environment.py`, `mounts.py`,
`security.py` and `resources.py`. `life.py` has what runs for a container until it has ended.
"""
