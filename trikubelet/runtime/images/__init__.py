"""Images: pulled when a container needs them, with the right credentials, and removed when none does.

`manager.py` tells the story of a pull. `credentials/` says with which passwords, `pull_records/` which pods have
shown that they may use what is here. `gc.py` frees the disk, `gc_choice.py` says of what.
"""
