"""Proof that the tests of a pod's life can fail: `make mutants`.

The story of a run: each mutant of the catalogue (`catalogue`) is one guard taken away, of the pure machine, of the
lives that it leads or of the ends of their containers, written as an edit of the source. One process collects the tests
that look at mutants (`trials`). A mutant is a child that is forked from it: there the functions of the module get the
code that they have after the edit (`patch`), and tests run until one fails: facts (of the machine the kubelet's table
tests and what differs on purpose) and, for what is pure, the property machine. `__main__` prints who caught what. A
mutant that nobody catches is a guard that nobody tests, and the run fails; so it does when an edit no longer fits the
source, or when an invariant of the property machine was not seen to fail.

The working tree is only read.
"""
