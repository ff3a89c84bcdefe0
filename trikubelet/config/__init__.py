"""Configuration of the agent: a KubeletConfiguration and the flags beside it.

`loader.py` makes one of a file; `rules.py` and its like find what is wrong with it. `eviction_thresholds.py`
reads the thresholds, into the values of `eviction_values.py`, which eviction goes by.
"""
