"""Pods' networks by CNI: whatever network plugin a cluster uses, its programs are run here as containerd runs them.

A folder has the configuration (`folder`, `configuration`): a network's name and its plugins in their order. All of them
are run with one version of the specification, which they agree on (`versions`). For a pod, its namespace is mounted
where plugins find it (`namespaces`), what will be done is noted (`cache`), and ADD is run plugin by plugin
(`chain`, `plugin`), each with what it asked to know of the pod (`arguments`) and with the result of the one before
(`results`). DEL is run from the note, in the other direction. `network` tells this in order, and reconciles.

`documents` reads what is from others; whatever that is, it is read or refused.
"""
