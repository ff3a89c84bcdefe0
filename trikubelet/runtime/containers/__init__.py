"""One container: everything that its start needs, in CRI's terms, and what runs for it.

`container.py` tells the story of a start, `life.py` that of what runs for a container until it has ended. `config.py`
makes the configuration, of `environment.py`, `mounts.py`, `security.py` and `resources.py`.
"""
