"""Disks that the node reaches over a network of its own: iSCSI and Fibre Channel (kubelet: `pkg/volume/iscsi`, `fc`).

The story of a volume: what is about to be done is written down (`records`). Then the disk is made to appear: `iscsi`
logs in to its target with the system's iscsiadm, `fibre_channel` has the kernel look for it; both go on in sysfs and
/dev (`host`), where the device, or the multipath device on top of several, is found. From there on both are alike
(`kind`): a file system is mounted once for the node and bound for each pod, or the device is mapped. When the last pod
has gone, it goes back the same way, and what was written down is removed last.

    plugins/kubernetes.io/iscsi/iface-<interface>/<portal>-<iqn>-lun-<lun>      mounted; the kubelet's layout
    plugins/kubernetes.io/iscsi/iface-<interface>/.<portal>-<iqn>-lun-<lun>.json
    plugins/kubernetes.io/fc/<wwns>-lun-<lun>, or <wwids>
    plugins/kubernetes.io/<kind>/volumeDevices/…                                the same for devices
"""
