"""What the agent reports about itself: logs, events, and what parts count.

logs.py                   structured lines, bound to a pod
events.py                 what happened to an object, in the words that users of a kubelet know
spans.py                  where traces may begin, if there are any
metrics.py               counts and histograms, as plain numbers that parts keep
families.py text_format.py  how a page of metrics is made of them; which pages there are, `metrics` and `node_api` know
"""
