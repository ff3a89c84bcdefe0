"""Images: pulled when a container needs them, with the right credentials, and removed when nobody does.

`manager.py` tells the story of a pull. `credentials/` says with which passwords, `pull_records/` who has shown that
they may use what is here. `gc.py` frees the disk, `gc_choice.py` says of what.
"""
