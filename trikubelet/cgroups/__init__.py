"""Control groups of pods: how much of the machine each gets, enforced by the kernel.

The story: `hierarchy` reads which hierarchies are mounted, `version` says whether the agent can run on them and asks
the runtime which driver it uses. A driver (`files_v1`, `files_v2`, `systemd`) makes and fills single groups; `settings`
says with what. `node` makes the group of all pods and limits it to what the node gives, `pods` makes one group for each
class of service and one for each pod, and removes them with all that is left inside.
"""
