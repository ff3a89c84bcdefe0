"""Devices of the node, which device plugins list, and what containers get of them (kubelet: `cm/devicemanager`).

The story of a plugin: it registers, on our socket `device-plugins/kubelet.sock` or with a socket of its own in
`plugins_registry` (`server.py`). We connect to it and ask for its options (`endpoint.py`, `connections.py`), and from
then on it sends its devices, the whole list with each change. The list goes into the book, and from there into the
node's capacity. When the plugin ends, its devices are unhealthy; five minutes later the resource is gone from the node.

The story of a device: a pod comes that asks for some. Whether there are enough, and which they should be, is worked out
from the book (`choice.py`, `book.py`, both pure), on the NUMA nodes that the topology manager agreed on with all who
have something to give (`topology.py`), with the plugin's opinion where it has one. The plugin is told which
(Allocate) and answers what the container needs. That is written down (`checkpoint.py`) before the pod is admitted.
Whenever the container starts, the plugin may prepare its devices (PreStartContainer), and the container gets what it
needs (`extras.py`). When the pod has ended, its devices are free again; plugins are not told.

    model.py        values
    choice.py       which devices a container gets, or why none
    book.py         what there is, and which container has it
    topology.py     on which NUMA nodes a pod's devices could be
    extras.py       what a container is started with
    checkpoint.py   the book's part that must survive the agent
    endpoint.py     one plugin: its calls and its lists
    connections.py  the plugin of each resource: newer ones take over from older ones
    giving.py       asking plugins for devices
    server.py       how plugins make themselves known
    manager.py      all of it together, and what the rest of the agent asks
    metrics.py     how often, and how long it took
    v1beta1/        generated from protos/
"""
