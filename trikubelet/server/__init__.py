"""The agent's HTTP API.

limits.py messages.py routing.py connection.py http.py      HTTP/1.1 on any Trio stream; knows nothing of pods
log_records.py log_file.py log_location.py container_logs.py    containers' logs: format, file, choice, copying
changes.py task_tree.py log_query.py local_api.py           the routes, and what they need of the agent (`AgentView`)
"""
