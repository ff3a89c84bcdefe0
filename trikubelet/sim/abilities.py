"""What a simulated runtime says that it can do beyond the basics, and how it refuses what it cannot.

By default it says as little of itself as containerd 1.6. User namespaces and the policy for groups are taken down and
reported as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from betterproto import serialized_on_wire
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.formats.values import define
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from trikubelet.sim.images import ImageShelf, SimulatedImage


@define
class Abilities:
    """Changes count from the next call on."""

    handlers: dict[str, v1.RuntimeHandlerFeatures] = attrs.field(factory=lambda: {"": v1.RuntimeHandlerFeatures()})
    """The runtime handlers and their features. The default one, "", runs pods even where it is not named."""
    supplemental_groups_policy: bool = False
    """Whether it knows the policy; then it also reports the user and groups of containers."""

    container_resources: bool = True
    """Whether it reports the resources of containers; containerd 1.6 does not."""

    def describe(self, reply: v1.StatusResponse) -> None:
        """Add to a reply what the runtime says of itself."""
        reply.runtime_handlers = [
            v1.RuntimeHandler(name=name, features=features) for name, features in self.handlers.items()
        ]
        if self.supplemental_groups_policy:
            reply.features = v1.RuntimeFeatures(supplemental_groups_policy=True)

    def check_handler(self, handler: str) -> None:
        """Raises GRPCError."""
        if handler and handler not in self.handlers:
            raise _refusal(f'failed to get sandbox runtime: no runtime for "{handler}" is configured')

    def check_container(self, config: v1.ContainerConfig, handler: str, images: ImageShelf) -> None:
        """`handler`: the sandbox's. Raises GRPCError."""
        for mount in config.mounts:
            if serialized_on_wire(mount.image):
                _check_image_volume(mount, images)
            if mount.recursive_read_only:
                self._check_recursive(mount, handler)

    def _check_recursive(self, mount: v1.Mount, handler: str) -> None:
        features = self.handlers.get(handler)
        if features is None or not features.recursive_read_only_mounts:
            raise _refusal(f'runtime handler "{handler}" does not support recursive read-only mounts')
        if not mount.readonly or mount.propagation is not v1.MountPropagation.PROPAGATION_PRIVATE:
            raise _refusal(f"recursive read-only mount {mount.container_path} must be read-only and private")


def container_user(config: v1.ContainerConfig, image: SimulatedImage) -> v1.ContainerUser:
    """The identity of a container's first process; the image adds its groups unless the policy is strict (KEP-3619)."""
    security = config.linux.security_context
    uid = security.run_as_user.value if serialized_on_wire(security.run_as_user) else image.uid or 0
    gid = security.run_as_group.value  # 0 where it is not told
    groups = [gid, *security.supplemental_groups]
    if security.supplemental_groups_policy is v1.SupplementalGroupsPolicy.Merge:
        groups += image.groups
    return v1.ContainerUser(
        linux=v1.LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=list(dict.fromkeys(groups)))
    )


def _check_image_volume(mount: v1.Mount, images: ImageShelf) -> None:
    if mount.host_path:
        raise _refusal(f"hostpath must be empty while mount image: {mount.container_path}")
    if not mount.readonly:
        raise _refusal(f"readonly must be true while mount image: {mount.container_path}")
    if images.find(mount.image.image) is None:
        raise _refusal(f'failed to resolve image "{mount.image.image}": not found')


def _refusal(text: str) -> GRPCError:
    return GRPCError(Status.UNKNOWN, text)
