"""Texts as others write and read them: durations, YAML documents, image names, Go's quotes, JSON strings and hashes;
and `values`, of which all values of this project are made.

Pure, and the lowest layer: nothing here knows an object of Kubernetes, so a command of the command line that wants to
read a duration loads no more than that.
"""
