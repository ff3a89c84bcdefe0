"""Configuration of the agent: a KubeletConfiguration and the flags beside it.

`loader.py` tells how a file becomes one; `rules.py` and its like say what is wrong with it. `eviction_thresholds.py`
reads the thresholds, into the values of `eviction_values.py`, which eviction goes by.
"""
