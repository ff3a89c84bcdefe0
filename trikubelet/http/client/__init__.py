"""Requests of probes and hooks: to any host, in the kubelet's way, without connections kept.

request.py    what to ask, made of a pod's fields
connect.py    the connection, whose end leaves nothing behind in the kernel
get.py answer.py   the exchange, and what of the answer is kept
"""
