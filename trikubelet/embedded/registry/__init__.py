"""Images from registries, by OCI's distribution protocol, into the embedded runtime's image store.

The way of a pull:

1. `hosts` says which servers to ask for a registry's images: those of containerd's `hosts.toml`, else its own.
2. `client` asks them in turn, follows redirects, waits and tries again (`retry` decides), and shows credentials
   (`credentials`) only when a server asks for them (`challenge`), and only to that server.
3. `documents` leads from a name to an image for this machine: index, manifest, configuration, each checked.
4. `pull` reads the layers that the store lacks (`blobs`), several at once, into the staging directory of an import,
   where they are unpacked in order while others still come. The image is there whole or not at all.

`puller` is the whole of it for CRI's PullImage: one pull at a time of each name, with its progress (`progress`).
The HTTP client is loaded with the first pull: `puller` imports `pull` then.
"""
