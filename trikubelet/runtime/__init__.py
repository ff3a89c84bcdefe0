"""Makes the container runtime match a pod.

The story of a sync: `manager.py` is asked to make a pod match what was seen of it (`observe.py`, by way of PLEG).
`plan.py` says what is to be done, purely, with `resize_plan.py`. `sync.py` carries that out: it ends what has to end
(`kill.py`, `hooks.py`; each container in its scope, `containers/life.py`), makes a sandbox (`sandboxes/`), pulls images
(`images/`), starts containers (`containers/`) or waits with that (`backoff.py`), and resizes what runs (`resize.py`,
`actuated.py`). `results.py` says what came of it. `turns.py` lets the runtime have only so many calls at a time, and
`state.py` knows whether it is there at all. `context.py` has what these parts need from others.

What has ended is removed by `gc.py`, which `gc_choice.py` tells what to remove, and `logs/` keeps what containers write
within bounds. `pod_files.py` has the files that a pod needs beside its volumes.
"""
