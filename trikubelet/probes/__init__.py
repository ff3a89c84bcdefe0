"""Probes: asking containers whether they have started, live and are ready.

The story of a probe: a pod's first sync gives each of its probes a worker (`manager`, `worker`), a task of its own. It
looks at the container's reported status and lets `decisions` say whether it is time to ask. `prober` asks through a
handler (`asking`), tries again when the asking itself failed, and reports failures by events. The answers are counted
by `decisions`; when a threshold is reached, the result goes into the book (`results`) and on to the sync loop, which
reports readiness at once and has the pod synced: a container that failed its liveness probe is restarted by the plan.
"""
