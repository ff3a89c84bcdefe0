"""What the agent counts, in Prometheus' words and under the kubelet's names.

The story of a number: a part counts it where it does its work, as a plain attribute or one of
`trikubelet.telemetry.metrics`. A collector here knows the part and the kubelet's name for what it counts, and when
somebody asks, it makes metric families of what the part holds at that moment (`families`). `exposition` gathers them
and writes them down as the client likes them: as text in Go's way, or as OpenMetrics (`text_format`, which also writes
the pages of `node.stats`).

So no part knows Prometheus, nothing is counted twice, and an agent that is never scraped does not even load the
library. What the parts of one agent are, `trikubelet.agent.metrics` knows. `health_checks` and `http_requests` are such
parts themselves.
"""
