"""Credentials for registries: where they come from, and which of them an image may be pulled with.

Three sources answer in turn. The pull secrets of the pod, read for each pull (`lookup`). The node's own files, as
Docker writes them (`docker_config`). Programs that the node's configuration names (`plugin_config`), which are run when
an image is theirs and whose answers are kept as long as they say (`plugins`). Each source fills a `Keyring`, whose keys
are locations of registries (`locations`), and `lookup.Credentials` asks all of them about one repository.

Whatever holds a secret shows nothing of it when it is printed, and no error quotes what it was read from.
"""
