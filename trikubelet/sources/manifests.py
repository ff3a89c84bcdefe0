"""From the bytes of a manifest to static pods of this node, or to problems with file, line and field.

`read_manifest` reads a file and never blocks on what only looks like one: a FIFO, a socket or a device is refused by
its type before it is opened, and size is looked at before content. `parse_manifest` takes the content apart. A file is
one unit: when anything in it is wrong, none of its pods is taken. The kubelet takes one pod a file; here one may hold
several documents, and `PodList`s.

`read_static_pod` takes the data of one pod, of a file or a URL: it must be a valid pod, gets its identity on this node
(`make_static`, kubelet: `applyDefaults`), and may not refer to API objects (`api_references`, kubelet:
`HasAPIObjectReference`). All but the reading is pure.

The UID is the kubelet's recipe: FNV-1a 128 over the defaulted pod, then `host:NODE`, then `file:PATH`, in hex. The
kubelet dumps the pod as its own Go struct of that release, so its UIDs change with nearly every minor version, and no
other program can print that struct. Here the pod's canonical JSON is hashed: the same ingredients, the same properties
(another node, another path or another content gives another pod), and stable as long as the defaults are.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import (
    POD_PENDING,
    Container,
    EphemeralContainer,
    Pod,
    Problem,
    Toleration,
    set_pod_defaults,
    to_dict,
    validate_pod,
    volume_config_maps,
    volume_secrets,
)
from trikubelet.api.decode import wire_name
from trikubelet.api.pod_kinds import CONFIG_HASH_ANNOTATION, CONFIG_SOURCE_ANNOTATION, FILE_SOURCE, HTTP_SOURCE
from trikubelet.api.pods import read_pod
from trikubelet.api.schema import APIObject
from trikubelet.api.validate_resources import fractional_bytes
from trikubelet.formats.values import frozen
from trikubelet.formats.yaml_documents import Document, YamlError, read_documents
from trikubelet.sources.other_kinds import TEMPLATE_HINT, what_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_MANIFEST_SIZE: Final = 10 * 2**20
"""The kubelet's limit (`maxConfigLength`)."""
UNKNOWN_FIELD: Final = "unknown field, it has no effect"
MAX_PROBLEMS: Final = 50
"""Problems of one file that are kept; of more only their number is."""
WARNED_FIELDS: Final = 10
"""Unknown fields that one warning names."""
DEFAULT_NAMESPACE: Final = "default"

_NAMES_A_FOLDER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""A UID names folders of volumes and logs, so it must not lead elsewhere."""
_WORD: Final = re.compile(r"[A-Za-z]{3,}")
_FNV_OFFSET: Final = 0x6C62272E07BB014262B821756295C58D
_FNV_PRIME: Final = 0x0000000001000000000000000000013B
_FNV_MASK: Final = 2**128 - 1


@frozen
class ManifestProblem:
    """One thing that is wrong with a manifest file."""

    file: Path
    line: int | None
    path: str
    """The field, e.g. `spec.containers[0].image`; empty when the whole file is meant."""
    message: str

    def __str__(self) -> str:
        place = display_path(self.file)
        if self.line is not None:
            place = f"{place}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


@frozen
class ManifestPod:
    """A static pod and the line where its manifest begins."""

    pod: Pod
    line: int


@frozen
class Manifest:
    """What a file holds: pods, or problems."""

    pods: tuple[ManifestPod, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    warnings: tuple[ManifestProblem, ...] = ()
    """Fields that Kubernetes does not have, and values that hardly mean what they say."""
    names: tuple[str, ...] = ()
    """Namespace and name of each pod that the file defines, also of one with problems, as far as they can be read."""
    unread: bool = False
    """The content was not seen (no permission, no descriptor left, ...): the same version may be fine next time."""


@frozen
class Signature:
    """What tells one version of a file from another."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def display_path(path: Path) -> str:
    """A path as text that every terminal, log and JSON document takes: on one line, odd bytes written as escapes.

    A file's name may hold any byte; Python keeps those that are no UTF-8 as surrogates, which cannot be encoded.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def place_of(pod: Pod) -> str:
    """Namespace and name, with a slash between."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def list_fields(fields: Sequence[str]) -> str:
    """Unknown fields as the text of one warning."""
    more = len(fields) - WARNED_FIELDS
    return ", ".join([*fields[:WARNED_FIELDS], *([f"and {more} more"] if more > 0 else [])])


def read_manifest(path: Path, node_name: str, *, may_refer: bool = False) -> Manifest:
    """Read and parse a file. Never raises for what a file can be or hold; blocks only on a disk."""
    try:
        status = path.stat()
        problem = _unreadable(status)
        if problem is None:
            raw = _read_regular(path)
            if raw is not None:
                return parse_manifest(raw, path, node_name, may_refer=may_refer)
            return unread_manifest(path, "the file was replaced while it was read")
    except OSError as error:
        return unread_manifest(path, _os_message(path, error))
    return Manifest(problems=(ManifestProblem(path, None, "", problem),))


def unread_manifest(path: Path, message: str) -> Manifest:
    """A file of which nothing is known but that it could not be read."""
    return Manifest(problems=(ManifestProblem(path, None, "", message),), unread=True)


def _unreadable(status: os.stat_result) -> str | None:
    kinds = (
        (stat.S_ISDIR, "a directory: manifests in sub-directories are not read"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    for test, kind in kinds:
        if test(status.st_mode):
            return f"expected a regular file, got {kind}"
    if status.st_size > MAX_MANIFEST_SIZE:
        return f"expected at most {MAX_MANIFEST_SIZE >> 20} MiB, got {status.st_size / 2**20:.1f} MiB"
    return None


def _read_regular(path: Path) -> bytes | None:
    """The content, or None when the path stopped being a regular file of acceptable size since it was looked at."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if _unreadable(os.fstat(descriptor)) is not None:
            return None
        raw = file.read(MAX_MANIFEST_SIZE + 1)
    return raw if len(raw) <= MAX_MANIFEST_SIZE else None


def _os_message(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        with contextlib.suppress(OSError):  # no link, or gone meanwhile
            return f"the symbolic link points to {display_path(path.readlink())}, which does not exist"
    return f"cannot be read: {error.strerror or error}"


def parse_manifest(raw: bytes, file: Path, node_name: str, *, may_refer: bool = False) -> Manifest:
    """The static pods of a file's content, or everything that is wrong with it.

    `may_refer`: see `read_static_pod`.
    """
    parser = _Parser(file, node_name, may_refer=may_refer)
    hint = TEMPLATE_HINT if b"{{" in raw else ""

    def unreadable(error: YamlError) -> None:
        parser.unreadable.add(error.line)
        parser.add(ManifestProblem(file, error.line, "", error.message + hint))

    documents = [document for document in read_documents(raw, unreadable) if not document.empty]
    for document in documents:
        try:
            parser.document(document)
        except YamlError as error:
            unreadable(error)
    if not documents and not parser.problems:
        parser.add(ManifestProblem(file, None, "", "the file holds no pod"))
    pods = () if parser.problems else tuple(parser.pods)
    return Manifest(pods, tuple(parser.all_problems()), tuple(parser.warnings), tuple(parser.names))


class _Parser:
    """Collects the pods, problems and warnings of one file."""

    def __init__(self, file: Path, node_name: str, *, may_refer: bool) -> None:
        self._file = file
        self._node_name = node_name
        self._may_refer = may_refer
        self._names: dict[str, int] = {}
        self._more = 0
        """Problems beyond those that are kept."""
        self.unreadable: set[int] = set()
        """Lines with a value that is no YAML: what is missing there is told already."""
        self.pods: list[ManifestPod] = []
        self.names: list[str] = []
        self.problems: list[ManifestProblem] = []
        self.warnings: list[ManifestProblem] = []

    def add(self, problem: ManifestProblem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        else:
            self._more += 1

    def all_problems(self) -> list[ManifestProblem]:
        """The problems, in the order in which they were found, and how many more there are."""
        if not self._more:
            return self.problems
        return [*self.problems, ManifestProblem(self._file, None, "", f"and {self._more} more")]

    def document(self, document: Document) -> None:
        for duplicate in document.duplicates:
            message = "the key is given twice in one mapping"
            self.add(ManifestProblem(self._file, duplicate.line, duplicate.path, message))
        data = document.data()
        if not isinstance(data, dict):
            self._problem(document, "", f"expected a Pod or PodList, got {_name_of(data)}")
            return
        kind, version = data.get("kind"), data.get("apiVersion")
        if kind not in ("Pod", "PodList"):
            self._problem(document, "kind", f"expected Pod or PodList, got {kind or 'nothing'}: {what_runs(data)}")
            return
        if version != "v1":
            self._problem(document, "apiVersion", f"expected v1, got {version or 'nothing'}")
        if kind == "Pod":
            self._pod(document, {**data, "apiVersion": "v1"}, "")
        elif isinstance(items := data.get("items") or [], list):
            for index, item in enumerate(items):
                self._pod(document, item, f"items[{index}]")
        else:
            self._problem(document, "items", f"expected a list, got {_name_of(items)}")

    def _pod(self, document: Document, data: Any, prefix: str) -> None:
        found = read_static_pod(data, node_name=self._node_name, file=str(self._file), may_refer=self._may_refer)
        for problem in found.problems:
            path = ".".join(part for part in (prefix, problem.path) if part)
            if document.line_of(path) not in self.unreadable:
                self._problem(document, path, problem.message)
        self._warn_of_unknown_fields(document, prefix, found.unknown_fields)
        pod = found.pod
        if pod is None or any(problem.path == "metadata.name" for problem in found.problems):
            return
        self.names.append(place_of(pod))
        line = document.line_of(prefix) if prefix else document.line
        if pod.full_name in self._names:
            message = f"the pod {pod.full_name} is defined in line {self._names[pod.full_name]} already"
            self._problem(document, ".".join(part for part in (prefix, "metadata.name") if part), message)
        self._names.setdefault(pod.full_name, line)
        self.pods.append(ManifestPod(pod, line))
        for warning in fractional_bytes(pod):
            full = ".".join(part for part in (prefix, warning.path) if part)
            self.warnings.append(ManifestProblem(self._file, document.line_of(full), full, warning.message))

    def _warn_of_unknown_fields(self, document: Document, prefix: str, paths: tuple[str, ...]) -> None:
        for path in paths:
            full = ".".join(part for part in (prefix, path) if part)
            self.warnings.append(ManifestProblem(self._file, document.line_of(full), full, UNKNOWN_FIELD))

    def _problem(self, document: Document, path: str, message: str) -> None:
        self.add(ManifestProblem(self._file, document.line_of(path), path, message))


def _name_of(data: Any) -> str:
    match data:
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case str():
            return "a string"
        case _:
            return "a number"


# --- One static pod --------------------------------------------------------------------------------------------------


@frozen
class StaticPod:
    """What the data of a manifest says."""

    pod: Pod | None
    """None: not even that. With problems it may not run."""
    problems: tuple[Problem, ...] = ()
    unknown_fields: tuple[str, ...] = ()
    """Paths of fields that Kubernetes does not have and that have no effect."""


def read_static_pod(
    data: Any, *, node_name: str, file: str | None = None, url: str | None = None, may_refer: bool = False
) -> StaticPod:
    """Decode, default and check the data of one manifest. Exactly one of file and url is its source.

    All checks are made, also of a pod that could be decoded in part only. `may_refer`: it may refer to API objects all
    the same, but for cluster trust bundles and resource claims.
    """
    decoded, problems = read_pod(data)
    if decoded is None:
        return StaticPod(None, problems)
    told = [*problems]
    uid = decoded.metadata.uid
    if not decoded.metadata.name and not _is_told("metadata.name", problems):
        told.append(Problem("metadata.name", "Required value: name is needed for the pod"))
    if uid and _NAMES_A_FOLDER.fullmatch(uid) is None:
        expected = 'expected letters and digits, with "-", "_" or "." between'
        told.append(Problem("metadata.uid", f'Invalid value: "{uid}": {expected}'))
    pod = make_static(set_pod_defaults(decoded), node_name=node_name, file=file, url=url)
    references = _forbidden_in_any_case(pod) if may_refer else api_references(pod)
    # An empty field in the place of one that could not be read must not be told as another problem.
    checked = [problem for problem in (*validate_pod(pod), *references) if not _follows(problem, told)]
    return StaticPod(pod, (*told, *checked), tuple(_unknown_fields(decoded)))


def _is_told(path: str, problems: Sequence[Problem]) -> bool:
    """True if a problem is about the field or about what contains it."""
    return any(path == known.path or path.startswith((f"{known.path}.", f"{known.path}[")) for known in problems)


def _follows(problem: Problem, known: Sequence[Problem]) -> bool:
    """True if a problem may only be there because another field could not be read."""
    if _is_told(problem.path, known):
        return True
    if "Not found: " in problem.message:
        return any(one.path.startswith(("spec.volumes", "spec.resourceClaims")) for one in known)
    parent, words = problem.path.rpartition(".")[0], {*_WORD.findall(problem.message)}
    known_fields = (one.path.rpartition(".") for one in known)
    return any(other == parent and words & {*_WORD.findall(field)} for other, _, field in known_fields)


def make_static(pod: Pod, *, node_name: str, file: str | None = None, url: str | None = None) -> Pod:
    """A decoded and defaulted pod as the static pod of this node. Exactly one of file and url is its source."""
    uid = pod.metadata.uid or _derive_uid(pod, node_name, file, url)
    metadata = attrs.evolve(
        pod.metadata,
        uid=uid,
        name=f"{pod.metadata.name}-{node_name.lower()}",
        namespace=pod.metadata.namespace or DEFAULT_NAMESPACE,
        annotations={
            **pod.metadata.annotations,
            CONFIG_HASH_ANNOTATION: uid,
            CONFIG_SOURCE_ANNOTATION: FILE_SOURCE if file is not None else HTTP_SOURCE,
        },
    )
    tolerations = _tolerate_no_execute(pod.spec.tolerations) if file is not None else pod.spec.tolerations
    spec = attrs.evolve(pod.spec, node_name=node_name, tolerations=tolerations)
    status = attrs.evolve(pod.status, phase=POD_PENDING)
    return attrs.evolve(pod, metadata=metadata, spec=spec, status=status)


def _unknown_fields(value: object, path: str = "") -> Iterator[str]:
    """Paths of the fields that an object and the objects in it were given and Kubernetes does not have."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _unknown_fields(item, f"{path}[{index}]")
    elif isinstance(value, APIObject):
        prefix = f"{path}." if path else ""
        yield from (f"{prefix}{name}" for name in value.unknown_fields)
        for attribute in attrs.fields(type(value)):
            inner = getattr(value, attribute.name)
            if isinstance(inner, APIObject | tuple) and inner:
                yield from _unknown_fields(inner, prefix + wire_name(attribute))


def fnv1a_128(data: bytes) -> str:
    """FNV-1a with 128 bits, in hex."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _FNV_MASK
    return f"{value:032x}"


def _derive_uid(pod: Pod, node_name: str, file: str | None, url: str | None) -> str:
    content = json.dumps(to_dict(pod), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    source = f"host:{node_name}file:{file}" if file is not None else f"url:{url}"
    # A path may hold bytes that are no UTF-8; they count as they are.
    return fnv1a_128(content.encode(errors="surrogatepass") + source.encode(errors="surrogateescape"))


def _tolerate_no_execute(tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Static pods are not evicted for the node's own troubles (kubelet: `AddOrUpdateTolerationInPod`)."""
    wanted = Toleration(operator="Exists", effect="NoExecute")
    rest = list(tolerations)
    for index, toleration in enumerate(rest):
        if _same_toleration(toleration, wanted):
            rest[index] = wanted
            return tuple(rest)
    return (*tolerations, wanted)


def _same_toleration(one: Toleration, other: Toleration) -> bool:
    return (one.key, one.effect, one.operator, one.value) == (other.key, other.effect, other.operator, other.value)


def api_references(pod: Pod) -> list[Problem]:
    """References to API objects, which a static pod may not have: the kubelet's first one comes first, in its words."""
    found: dict[str, str] = {}
    for references in (_service_account, _named_secrets, _named_config_maps, _claims, _volumes):
        for path, resource in references(pod):
            found.setdefault(path, resource)
    # A projected volume is named as a whole first, and then each source.
    whole = {path.partition(".projected.")[0] for path in found if ".projected." in path}
    return [
        Problem(path, f"static pods may not reference {resource}")
        for path, resource in found.items()
        if path not in whole
    ]


def _forbidden_in_any_case(pod: Pod) -> Iterator[Problem]:
    """Without the gate PreventStaticPodAPIReferences."""
    for index, volume in enumerate(pod.spec.volumes):
        for projection in () if volume.projected is None else volume.projected.sources:
            if projection.cluster_trust_bundle is not None:
                yield Problem(
                    f"spec.volumes[{index}]", "static pods may not use ClusterTrustBundle projected volume sources"
                )
    if pod.spec.resource_claims:
        yield Problem("spec.resourceClaims", "static pods may not use ResourceClaims")


def _service_account(pod: Pod) -> Iterator[tuple[str, str]]:
    if pod.spec.service_account_name:
        yield "spec.serviceAccountName", "serviceaccounts"
    if pod.spec.service_account:
        yield "spec.serviceAccount", "serviceaccounts"


def _containers(pod: Pod) -> Iterator[tuple[str, Container | EphemeralContainer]]:
    for field, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
        ("ephemeralContainers", pod.spec.ephemeral_containers),
    ):
        for index, container in enumerate(containers):
            yield f"spec.{field}[{index}]", container


def _named_secrets(pod: Pod) -> Iterator[tuple[str, str]]:
    for index, reference in enumerate(pod.spec.image_pull_secrets):
        if reference.name:
            yield f"spec.imagePullSecrets[{index}]", "secrets"
    for path, container in _containers(pod):
        for index, source in enumerate(container.env_from):
            if source.secret_ref is not None and source.secret_ref.name:
                yield f"{path}.envFrom[{index}].secretRef", "secrets"
        for index, variable in enumerate(container.env):
            origin = variable.value_from
            if origin is not None and origin.secret_key_ref is not None and origin.secret_key_ref.name:
                yield f"{path}.env[{index}].valueFrom.secretKeyRef", "secrets"
    for index, volume in enumerate(pod.spec.volumes):
        if any(volume_secrets(volume)):
            yield f"spec.volumes[{index}]", "secrets"


def _named_config_maps(pod: Pod) -> Iterator[tuple[str, str]]:
    for path, container in _containers(pod):
        for index, source in enumerate(container.env_from):
            if source.config_map_ref is not None and source.config_map_ref.name:
                yield f"{path}.envFrom[{index}].configMapRef", "configmaps"
        for index, variable in enumerate(container.env):
            origin = variable.value_from
            if origin is not None and origin.config_map_key_ref is not None and origin.config_map_key_ref.name:
                yield f"{path}.env[{index}].valueFrom.configMapKeyRef", "configmaps"
    for index, volume in enumerate(pod.spec.volumes):
        if any(volume_config_maps(volume)):
            yield f"spec.volumes[{index}]", "configmaps"


def _claims(pod: Pod) -> Iterator[tuple[str, str]]:
    if pod.spec.resource_claims:
        yield "spec.resourceClaims", "resourceclaims"


_VOLUME_RESOURCES: Final = (
    ("config_map", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistent_volume_claim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azure_file", "secrets (via azureFile volumes)"),
)
_PROJECTION_RESOURCES: Final = (
    ("config_map", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("service_account_token", "serviceaccounts (via projected volumes)"),
    ("cluster_trust_bundle", "clustertrustbundles"),
    ("pod_certificate", "podcertificates"),
)


def _volumes(pod: Pod) -> Iterator[tuple[str, str]]:
    for index, volume in enumerate(pod.spec.volumes):
        path = f"spec.volumes[{index}]"
        for field, resource in _VOLUME_RESOURCES:
            if getattr(volume, field) is not None:
                yield path, resource
        for position, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            for field, resource in _PROJECTION_RESOURCES:
                if getattr(source, field) is not None:
                    yield f"{path}.projected.sources[{position}]", resource
