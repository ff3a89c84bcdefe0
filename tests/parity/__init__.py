"""What of the kubelet is here: tables of names, what the agent's own tables know, and the page made of both.

`tables` reads `docs/parity/*.csv`, `known` asks the code, `report` writes the page. `emitted` reads from the source
which events there can be, with the help of `source`, and `kubelet_events` has the kubelet's. `upstream` reads names
from the kubelet's source.
"""
