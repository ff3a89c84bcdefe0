"""A network for each pod of the embedded runtime.

The keeper makes a pod's network namespace and holds it open; this package fills it. There are three ways, tried in
this order: CNI plugins where a configuration names them (`cni/`), a bridge of our own where the agent may make one
(`bridge/`), and pasta where it is installed and there is no root (`pasta.py`). Where none works pods share the
machine's network, and the runtime says so.

`model` has what all three are asked, and answer.
"""
