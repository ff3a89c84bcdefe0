"""The documentation: that it builds, and that its commands, configurations and manifests are ones that work.

`blocks` takes them out of the pages.
"""
