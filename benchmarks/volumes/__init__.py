"""What volumes add to a pod's start, beside the same pod without them and the file-system calls alone."""
