"""Out of memory: what the kernel says of it, and that it spares the agent.

The kernel writes to its log whenever it kills for want of memory. `kernel_log` reads a record of it and joins the
records of one kill; `watcher` follows /dev/kmsg and makes the node's event `SystemOOM` of kills that no cgroup's limit
caused. That a container was killed at its own limit is the runtime's to tell. `score` sets the agent's own score, so
that others die first.
"""
