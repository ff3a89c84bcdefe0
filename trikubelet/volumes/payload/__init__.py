"""What volumes show that an agent writes itself: ConfigMaps, Secrets, a pod's own fields, tokens.

A builder (`config_map`, `secret`, `downward`, `projected`) makes a payload, files by their path, of what was asked for:
pure functions, whose errors are the kubelet's. `names` refuses paths that lead elsewhere. `writer` puts a payload into
a volume's folder so that readers see the old one or the new one and never half of each, after `ownership` has given it
to the pod's group. `nested` tells where other volumes are mounted inside of it.
"""
