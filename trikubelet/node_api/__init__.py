"""The node's HTTP API, and the agent's own on its unix socket.

listeners.py serving_tls.py                           addresses, TLS
auth/                                                 authentication, authorization
log_stamps.py log_records.py log_blocks.py            containers' logs: the format
log_file.py rotated_logs.py folder_watch.py           their files, and being told of changes
log_location.py log_query.py container_logs.py        choice, and copying
node_log_query.py node_files.py file_answers.py       the node's logs: journal and files
changes.py task_tree.py stack_samples.py              what handlers use beside
view.py                                               what handlers ask of the agent
handlers/                                             one module per kind of route
node_api.py local_api.py                              the tables of routes

It stands on `http`, which serves the requests. What handlers ask of the agent, they ask by the protocols of `view.py`.
"""
