"""Remote procedure calls over gRPC: the engine, generated messages, and the clients that many share.

grpc/                 gRPC on Trio
cri/                  the container runtime: messages with a codec of their own, two clients, what they raise
csi/ device_plugins/ dra/ dra_health/ plugin_registration/ pod_resources/ health/   generated from `protos/`, a folder
                      for each version

Who calls and who serves lies with the parts that do: CSI in `volumes`, devices in `node`.
"""

from trikubelet.rpc.betterproto_library import load

load()
