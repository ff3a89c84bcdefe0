"""The keeper: one small single-threaded process that starts, owns and logs the containers of one runtime folder.

It runs under `python -I -S` with nothing but the standard library, so it stays at some 10 MiB, and what it starts is
forked in well under a millisecond, however large the agent has grown. It is no part of the agent's Trio world: an epoll
loop (`event_loop.py`) that must never block, because every container's output flows through it.

    server.py        the socket, the requests, and which containers exist
    container.py     one container from fork to recorded exit; it is forked before its start, if it can wait for that
    execution.py     one command run inside a container
    process.py       the forked process of either, as the keeper sees it
    forker.py        asks for a fork                template.py … the process that forks, and knows nothing of pods
    context.py       what a forked process is told
    child.py         what it does until it becomes the container
    rootfs.py        … its mounts (overlays.py: its root; host_files.py: the machine's files that it may see;
                     kernel_files.py: procfs and the like; other_mounts.py: what it gets from the pod and from other
                     containers; declared_volumes.py: its image's volumes; places.py: where all that is mounted)
    identity.py      … its user and capabilities        reaper.py … its descendants
    reaper_program.py  the machine code that descendants' reapers execute
    reports.py       what comes back from a forked process, before it is believed
    cgroups.py       resource limits, and the way to kill what got away
    device_program.py  which devices they may use, on cgroup v2
    output.py        a container's output into logfile.py: bytes of a pipe into lines of a CRI log
    followers.py     … and to attached clients
    sandbox.py       what the containers of a pod share     namespace_maker.py … the process that makes it
    protocol.py      the messages, for both ends
    linux.py         system calls that Python 3.11 lacks

Rules that are easy to break: the main loop never waits for what a container could hold up; nothing is forked from this
process once it knows of a pod, since a forked process has its parent's memory; after the fork a child imports nothing,
since its root is about to change; this process never leaves its own namespaces; every descriptor is close-on-exec.
"""
