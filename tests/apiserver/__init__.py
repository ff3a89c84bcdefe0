"""An API server for tests: in memory, over real TLS, with the rules that an agent meets in a cluster, and with faults.

    async with open_api_server(TrioClock()) as server:          # server.py
        server.admin.create({"kind": "Pod", …})                 # what others do to the cluster: admin.py
        async with open_client(ServerAccess.node(server, "a")) as client:       # access.py
            …
        server.faults.unreachable()                             # faults.py
        server.calls                                            # what clients asked for, and what came of it

A test on a mock clock takes `autojump_clock` itself and uses memory streams (`server.connect`); a test with processes
or kubectl has `nursery.start(server.serve_tcp)` and `server.kubeconfig(…)`.

The server is honest where an agent would notice: resourceVersions, conflicts and preconditions, no change for a write
that changes nothing, watches with bookmarks and 410, graceful deletion, what a status write may change, the Node
authorizer and NodeRestriction, and the texts of refusals. `test_conventions.py` says what it shares with a real one.
Left out: protobuf, server-side apply, gzip, quotas, garbage collection of owners, most validation of what agents do not
write.
"""
