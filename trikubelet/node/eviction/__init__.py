"""Ending pods before the node runs out of memory, disk or processes.

A round, every ten seconds, at once after a pod was ended, and sooner when a threshold is crossed
(`threshold_notifier.py`):

1. A measurement says what is left of each resource and what each pod uses of it (`measure.py` asks the node's
   statistics, `observations.py` reads their answer; `model.py` has the values).
2. `rounds.py` compares it with the thresholds (`config.eviction_thresholds` reads them): which are crossed,
   for how long, which conditions the node has, and what is to be done now.
3. Pods beyond the disk space that they may use themselves are ended first (`local_limits.py`), all of them.
4. Else the most urgent threshold is acted on: dead containers and unused images go, and if that is not enough,
   `ranking.py` says in which order pods are to be ended, `choice.py` takes the first, and `messages.py` says why. It is
   one pod in a round.

`manager.py` carries it out. All but measure, threshold_notifier and manager is pure: the same measurements give the
same rounds. Names and outcomes are the kubelet's (`pkg/kubelet/eviction`).
"""
