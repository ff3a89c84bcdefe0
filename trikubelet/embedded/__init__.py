"""A CRI runtime in pure Python: containers without containerd.

The story of a container, in order:

1. The agent's gRPC call ends in `runtime_service.EmbeddedRuntimeService`, which keeps pod sandboxes and containers as
   small files (`records.py`) and turns a CRI configuration into a plain specification (`container_spec.py`).
2. `keeper_client.py` hands that over a unix socket to the keeper (`keeper/`), one small process per runtime folder that
   outlives the agent. It forks the container when that is created (a pod's first one with the pod) and lets it go at
   its start, is its parent, writes its log, and records how it ended.
3. Commands in it (`commands.py`, `exec_sync.py`), clients attached to it (`attachments.py`) and connections to its
   ports (`forwarding.py`) are descriptors shared with the keeper. `stream_calls.py` answers CRI's Exec, Attach and
   PortForward with URLs, `streaming_server.py` serves them, and `sessions.py` joins the two ends.
4. A pod's network namespace is the keeper's (`pod_namespace.py`); who fills it, and takes it down again, is `network/`,
   by way of `pod_networks.py`.
5. The keeper's exit event comes back over the socket, becomes a CRI container event, and the agent's PLEG reads it.

Nothing is lost with a process: the keeper holds the containers while the agent is away, and the files tell a new keeper
what to clean up. `registry/` pulls images, `images/` unpacks them into root filesystems. `runtime.py` puts the parts
together.

What it cannot do, and says so in its status: resource limits need a writable cgroup hierarchy, SELinux labels a policy
that lets it give some, and where the machine allows no better pods share its network.
"""
