"""Volumes of kinds that were part of Kubernetes once, served by the CSI drivers that took their place (kubelet:
`csimigration`, `csi-translation-lib`).

A pod or a persistent volume still says `gcePersistentDisk`; what the rest of the agent sees is a persistent volume of
the driver (`translate`), by the same handle, attributes and topology (`topology`) as every other component makes of it:
the handle decides which VolumeAttachment is looked for, and which volume the driver stages. Nothing is written back.
Pure.
"""
