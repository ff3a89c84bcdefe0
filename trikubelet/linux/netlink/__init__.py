"""Talking to the kernel's network over netlink, without `ip`, `nft` or a library.

A library was measured first: importing pyroute2 costs 0.57 s, and what is needed of it is a dozen kinds of
messages. So the messages are encoded here:

messages.py       headers and attributes, to and from bytes
links.py          network devices: bridges, veth pairs, their counters (rtnetlink)
routes.py         addresses and routes (rtnetlink)
nftables.py       tables, chains, rules, maps (nf_tables)
expressions.py    what the rules of nf_tables are made of
conntrack.py      forgetting connections (ctnetlink)
client.py         a socket: sends requests, awaits what the kernel says of each

All but `client.py` are functions on bytes. What they do not know of an answer they pass over, and what cannot be an
answer of the kernel raises `MalformedMessageError`.
"""
