"""What the node's API costs: logs beside `cat`, commands beside the runtime's own server, requests by kind."""
