"""Plugins of the node, which introduce themselves through sockets in a folder.

The story of a plugin: its socket appears in the folder (`watcher`). It is asked what it is, in the words of `v1`, the
handler of its type takes it into use or says why not, and it is told (`registration`). `handlers` is what a type of
plugins has to bring along: CSI drivers do (`volumes.csi.registration`), others may.
"""
