"""The machine goes down, and pods end in time and in order (kubelet: `nodeshutdown`).

The story: logind lets programs delay a shutdown for a while. `logind` takes such an inhibitor when the agent starts,
and is notified when a shutdown begins. Then `manager` has the node reported as not ready, refuses new pods, and ends
the others, those of the lowest priority first: `groups` says which pods end together, and how much time each has. Once
the API server knows how they ended, the inhibitor is released and the machine goes down.

What happened is kept in a file (`record`): an agent that is killed in the middle goes on where it was.
"""
