"""Proof that the tests of the pure pod workers can fail: `make mutants`.

The story of a run: each mutant of the catalogue (`catalogue`) is one guard of the machine taken away, written as an
edit of its source. A mutant gets a copy of the package of its own (`workshop`), the edit is applied there, and two
sets of tests run on it in processes of their own: the facts (the kubelet's table tests and what differs on purpose)
and the property machine, with a plugin (`observer`) that notes what failed first. `__main__` runs a few at a time and
prints who caught what. A mutant that nobody catches is a guard that nobody tests, and the run fails; so it does when an
edit no longer fits the source, or when an invariant of the property machine was not seen to fail.

The working tree is only read.
"""
