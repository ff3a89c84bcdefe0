"""The statuses of pods: from the observed state of the runtime to the status that is reported.

The story of a status: a pod worker has a pod and what PLEG observed of it. `generate` makes a status of both, purely:
`container_statuses` describes each container, `resources` what they really have, `phase` sums them up, `conditions`
says what holds of the pod. The worker hands the result to the `StatusManager`, the one owner of what is reported. It
lets `merge` decide, purely, what the new status becomes after the old one: times of transitions, and the ways that a
status never goes. Then it tells its subscribers. With a cluster that is the `writer`: `write_decisions` tells it,
purely, which patch an API server needs, and when an ended pod's object may go.
"""
