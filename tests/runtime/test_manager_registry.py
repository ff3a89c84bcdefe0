"""Images from a registry that asks for a name and a password, pulled by a real containerd with pods' pull secrets.

What users see of each case, beside the kubelet's words (1.36: `images/image_manager.go`, `events/event.go`; what stands
between the runtime's `failed to …` and the end is containerd's, and the same under both):

    case                        waiting reason    message                        events of the container
    --------------------------  ----------------  -----------------------------  ------------------------------------
    right secret                                                                 Pulling, Pulled "Successfully pulled
                                                                                 image … in … (… including waiting).
                                                                                 Image size: … bytes."
    wrong password, none,       ErrImagePull      `failed to pull and unpack     Pulling, Failed "Failed to pull image
    a secret that is not there                    image …: … 401 Unauthorized`   …: …", Failed "Error: ErrImagePull"
      … asked again too early   ImagePullBackOff  `Back-off pulling image …:     BackOff "Back-off pulling image …",
                                                  ErrImagePull: …`               Failed "Error: ImagePullBackOff"
    unknown image               ErrImagePull      the same, `…: not found`       the same
    present, IfNotPresent,      as if it were     as above                       as above: nothing tells that the
    pulled with another secret  not there                                        image is there
    the same secret again                                                        Pulled "Container image … already
                                                                                 present on machine and can be
                                                                                 accessed by the pod"

A secret that is not there adds FailedToRetrieveImagePullSecret "Unable to retrieve some image pull secrets (…);
attempting to pull the image may not succeed." The kubelet leaves `rpc error: code = Unknown desc = ` away (it strips
errors without a code of their own), and prints it for others: `rpc error: code = NotFound desc = `.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.containerd_programs import containerd_version
from tests.oci_image import OciImage, make_root_folder
from tests.registry_node import RegistryNode, needs_registry, pull_secret
from tests.runtime.containerd_stage import manifest, stage_on
from trikubelet.clock import SystemClock
from trikubelet.runtime.images.credentials.docker_config import DockerConfigFiles
from trikubelet.runtime.images.credentials.lookup import Credentials
from trikubelet.runtime.images.pull_records.model import VerificationPolicy
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.containerd_node import ContainerdNode
    from tests.runtime.containerd_stage import ContainerdStage
    from trikubelet.api import Pod
    from trikubelet.runtime.results import SyncResult

pytestmark = [pytest.mark.containerd, pytest.mark.root, needs_registry]

PULLED = r'Successfully pulled image "{image}" in \S+ \(\S+ including waiting\)\. Image size: \d+ bytes\.'
THERE = 'Container image "{image}" already present on machine and can be accessed by the pod'
NO_SECRETS = "Unable to retrieve some image pull secrets (forgotten); attempting to pull the image may not succeed."


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryNode]:
    node = RegistryNode(tmp_path_factory.mktemp("registry"))
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
def image(containerd: ContainerdNode, registry: RegistryNode, tmp_path: Path) -> Iterator[str]:
    """The full name of an image in the registry that containerd has never seen."""
    root = make_root_folder(tmp_path / "rootfs")
    made = OciImage.from_folder(root, {"Cmd": ["sh", "-c", "echo pulled"], "Labels": {"of": tmp_path.name}})
    name = registry.push(f"private/{re.sub('[^a-z]', '', tmp_path.name)}:1", made)
    yield name
    containerd.ctr("images", "remove", name, made.id)


@asynccontextmanager
async def stage_with(containerd: ContainerdNode, folder: Path) -> AsyncIterator[ContainerdStage]:
    """With pull secrets and pull records, but without credentials of the node."""
    files = DockerConfigFiles(folder / "root", home=None, working=folder, root=folder)
    records = PullRecords(RecordStore(folder / "root"), VerificationPolicy("NeverVerifyPreloadedImages"), SystemClock())
    async with stage_on(
        containerd, folder, credentials=Credentials(files), pull_records=records, registry_pull_qps=0
    ) as stage:
        yield stage


def pulling(name: str, image: str, *secrets: str, policy: str = "IfNotPresent") -> Pod:
    named = ", ".join(f"{{name: {secret}}}" for secret in secrets)
    container = f"{{name: main, image: {image!r}, imagePullPolicy: {policy}}}"
    return manifest(name, f"imagePullSecrets: [{named}]\ncontainers: [{container}]", "echo pulled")


async def refused(stage: ContainerdStage, pod: Pod) -> SyncResult:
    result = (await stage.sync(pod)).results[-1]
    assert result.failed
    assert stage.manager.waiting_reasons(pod.metadata.uid)["main"] == (result.reason, result.message)
    return result


async def test_the_right_secret_brings_the_image(
    containerd: ContainerdNode, registry: RegistryNode, image: str, tmp_path: Path
) -> None:
    pod = pulling("right", image, "key")
    async with stage_with(containerd, tmp_path) as stage:
        stage.objects.secrets["default", "key"] = pull_secret("key", registry.host)
        assert await stage.output(pod) == ["pulled"]
        first, second, *others = stage.said(pod)
        assert first == ("Pulling", f'Pulling image "{image}"')
        assert second[0] == "Pulled"
        assert re.fullmatch(PULLED.format(image=re.escape(image)), second[1])
        assert [reason for reason, _ in others] == ["Created", "Started"]


def unresolved(image: str) -> str:
    """containerd's words; since 2.1 another part of it pulls."""
    return f'failed to resolve reference "{image}"' if containerd_version() < (2, 1) else "failed to resolve image"


def is_about_credentials(message: str) -> bool:
    return message.endswith((": 401 Unauthorized", ": authorization failed: no basic auth credentials"))


@pytest.mark.parametrize("secret", ["wrong", "forgotten", None])
async def test_without_the_right_secret_the_image_does_not_come(
    containerd: ContainerdNode, registry: RegistryNode, image: str, tmp_path: Path, secret: str | None
) -> None:
    pod = pulling("locked-out", image, *([secret] if secret else []))
    problem = f'failed to pull and unpack image "{image}": {unresolved(image)}: '
    async with stage_with(containerd, tmp_path) as stage:
        stage.objects.secrets["default", "wrong"] = pull_secret("wrong", registry.host, password="open barley")
        result = await refused(stage, pod)
        assert result.reason == "ErrImagePull"
        assert result.message.startswith(problem)
        assert is_about_credentials(result.message)
        missing = [("FailedToRetrieveImagePullSecret", NO_SECRETS)] if secret == "forgotten" else []
        assert stage.said(pod) == [
            *missing,
            ("Pulling", f'Pulling image "{image}"'),
            ("Failed", f'Failed to pull image "{image}": {result.message}'),
            ("Failed", "Error: ErrImagePull"),
        ]
        again = await refused(stage, pod)
        back_off = f'Back-off pulling image "{image}"'
        assert (again.reason, again.message) == ("ImagePullBackOff", f"{back_off}: ErrImagePull: {result.message}")
        assert stage.said(pod)[-2:] == [("BackOff", back_off), ("Failed", "Error: ImagePullBackOff")]
        await stage.destroy(pod)


async def test_an_image_that_nobody_pushed_is_not_found(
    containerd: ContainerdNode, registry: RegistryNode, tmp_path: Path
) -> None:
    image = f"{registry.host}/private/nothing:1"
    pod = pulling("nothing", image, "key")
    async with stage_with(containerd, tmp_path) as stage:
        stage.objects.secrets["default", "key"] = pull_secret("key", registry.host)
        result = await refused(stage, pod)
        assert result.reason == "ErrImagePull"
        assert result.message == (
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": '
            f"{unresolved(image)}: {image}: not found"
        )
        assert stage.said(pod)[1:] == [
            ("Failed", f'Failed to pull image "{image}": {result.message}'),
            ("Failed", "Error: ErrImagePull"),
        ]
        await stage.destroy(pod)


async def test_an_image_that_another_pods_secret_brought_stays_closed(
    containerd: ContainerdNode, registry: RegistryNode, image: str, tmp_path: Path
) -> None:
    owner = pulling("owner", image, "key")
    strangers = [pulling("wrong-key", image, "wrong"), pulling("no-key", image)]
    never = pulling("never", image, "wrong", policy="Never")
    friend = pulling("friend", image, "copy")
    async with stage_with(containerd, tmp_path) as stage:
        stage.objects.secrets["default", "key"] = pull_secret("key", registry.host)
        stage.objects.secrets["default", "copy"] = pull_secret("copy", registry.host)
        stage.objects.secrets["default", "wrong"] = pull_secret("wrong", registry.host, password="open barley")
        assert await stage.output(owner) == ["pulled"]
    async with stage_with(containerd, tmp_path) as stage:  # and an agent that was started again knows it too
        stage.objects.secrets["default", "copy"] = pull_secret("copy", registry.host)
        stage.objects.secrets["default", "wrong"] = pull_secret("wrong", registry.host, password="open barley")
        for stranger in strangers:
            result = await refused(stage, stranger)
            assert result.reason == "ErrImagePull"
            assert is_about_credentials(result.message)
            assert [reason for reason, _ in stage.said(stranger)] == ["Pulling", "Failed", "Failed"]
            assert (await stage.status(stranger)).container_statuses == ()
            await stage.destroy(stranger)
        kept = await refused(stage, never)
        absent = f'Container image "{image}" is not present with pull policy of Never'
        assert (kept.reason, kept.message) == ("ErrImageNeverPull", absent)
        await stage.destroy(never)
        registry.freeze()
        try:
            assert await stage.output(friend) == ["pulled"]  # nobody had to ask the registry
        finally:
            registry.resume()
        assert stage.said(friend)[0] == ("Pulled", THERE.format(image=image))
