"""What the kernel, the system's services and installed libraries offer. Nothing here knows pods.

inotify.py socket_address.py                file system events, sockets with long paths
durable_files.py checkpoint.py              files that survive a crash, and those with a checksum, as the kubelet's
trees.py                                    deleting and measuring what others left in a folder
selinux.py relabel.py                       SELinux: a policy's labels for containers, and files that get them
safe_path.py                                paths that a pod has a hand in: openat2, and no link on the way out
programs.py                                 running what is somebody else's, with bounds
mount_calls.py mount_table.py               mounts: the system calls, what is mounted,
mounter.py                                  and both behind one interface
machine.py machine_facts.py huge_pages.py   what the machine is and has
dbus.py sd_notify.py                        systemd and logind
libraries.py                                others' libraries, loaded without what an agent does not use
netlink/ iptables_legacy.py                 network devices, addresses, routes and packet rules
"""
