"""Ways out of a container that somebody has found, in this runtime or in others, each tried as an attacker would.

Every module is about one family. Its docstring lists the published holes of that family: which test tries each, or why
it cannot apply here. `docs/embedded-advisories.md` goes through runc, crun, youki and containerd.
`test_with_less.py` runs all of them once more in a user namespace, and without any namespace.
"""
