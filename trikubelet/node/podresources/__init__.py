"""Tells monitoring agents on the node what its pods hold: devices, CPUs, memory (podresources v1 and v1alpha1).

    providers.py   the managers that give resources to containers: their questions and answers
    answers.py     the API's answers, made of pods and of what the providers say; pure
    services.py    the two versions of the service
    server.py      both on their socket, not more often than the kubelet allows
    metrics.py    how often it was asked
    v1/ v1alpha1/  generated from protos/

A call goes that way backwards: it is let in (`server.py`) and counted (`services.py`), pods are taken as they are now,
and for each container the providers say what it has. Nothing is kept between two calls, and nothing waits: an answer is
of one moment.
"""
