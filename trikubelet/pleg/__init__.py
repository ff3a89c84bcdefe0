"""PLEG, the pod lifecycle event generator: the agent's only eyes on the runtime.

Sources (`pidfd`, `cri_events`, `relist`) report *that* something may have happened to a pod. `Pleg` then inspects
that one pod, publishes what it saw in the `PodStatusCache`, compares it with what was there before, and sends the
differences as lifecycle events. So every event has one origin, the cache is never behind an event, and two
inspections of one pod never race.
"""
