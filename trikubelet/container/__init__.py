"""Values that all packages about containers share (kubelet: `pkg/kubelet/container`). Pure.

model.py                     what the runtime was seen to hold: made by `runtime`, published by `pleg`, read by all
labels.py hashing.py         what a container carries with it, to be found again
progress.py restart_policy.py   how far a pod has come, and what is to be started again
probe_results.py             what probes said last
abilities.py                 what the runtime says that it can do
downward.py expansion.py     a pod's own fields, and variables in its texts
errors.py messages.py        errors, and their texts for users
"""
