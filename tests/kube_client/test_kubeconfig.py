from __future__ import annotations

import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from trikubelet.kube_client.in_cluster import NotInClusterError, in_cluster_access
from trikubelet.kube_client.kubeconfig import (
    ClusterAccess,
    KubeconfigError,
    TlsSettings,
    missing_files,
    parse_kubeconfig,
    read_kubeconfig,
    write_bootstrapped,
)

FILE = Path("/etc/kubernetes/kubelet.conf")
SERVER = "https://10.0.0.1:6443"


def config(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    context = {"cluster": "clean", "user": "clean"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "clean", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "clean", "user": user or {}}],
        "contexts": [{"name": "clean", "context": context}],
        "current-context": "clean",
        **changes,
    }


def parse(data: Any) -> ClusterAccess:
    return parse_kubeconfig(yaml.safe_dump(data).encode(), FILE)


def problems(data: Any) -> str:
    with pytest.raises(KubeconfigError) as failed:
        parse(data)
    return str(failed.value)


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def test_everything_of_the_current_context_is_taken() -> None:
    access = parse(
        config(
            {
                "certificate-authority-data": encoded(b"CA"),
                "tls-server-name": "kubernetes",
                "proxy-url": "socks5://proxy:1080",
                "disable-compression": True,
            },
            {"client-certificate-data": encoded(b"CERT"), "client-key-data": encoded(b"KEY"), "token": "abc"},
        )
    )
    assert (access.server, access.proxy_url, access.disable_compression) == (SERVER, "socks5://proxy:1080", True)
    assert access.tls == TlsSettings(b"CA", "kubernetes")
    assert (access.credentials.certificate, access.credentials.key) == (b"CERT", b"KEY")
    assert access.credentials.token == "abc"


def test_relative_paths_start_at_the_folder_of_the_kubeconfig() -> None:
    access = parse(
        config(
            {"certificate-authority": "pki/ca.crt"},
            {"client-certificate": "/abs/c.pem", "client-key": "k.pem", "tokenFile": "t", "exec": plugin("./bin/p")},
        )
    )
    assert access.tls.authority == Path("/etc/kubernetes/pki/ca.crt")
    assert access.credentials.certificate == Path("/abs/c.pem")
    assert access.credentials.key == Path("/etc/kubernetes/k.pem")
    assert access.credentials.token_file == Path("/etc/kubernetes/t")
    assert access.credentials.exec is not None
    assert access.credentials.exec.command == "/etc/kubernetes/bin/p"


def plugin(command: str = "aws", **changes: Any) -> dict[str, Any]:
    return {"command": command, "apiVersion": "client.authentication.k8s.io/v1beta1", **changes}


def test_a_plugin_without_a_slash_is_looked_for_in_path_and_gets_what_the_cluster_has_for_it() -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    user = {"exec": plugin(args=["a"], env=[{"name": "N", "value": "v"}], provideClusterInfo=True)}
    settings = parse(config({"extensions": [extension]}, user)).credentials.plugin
    assert settings is not None
    assert (settings.command, settings.args, settings.env) == ("aws", ("a",), (("N", "v"),))
    assert settings.interactive_mode == "IfAvailable"
    assert settings.cluster_config == {"audience": "x"}


@pytest.mark.parametrize("other", [{"token": "t"}, {"tokenFile": "t"}, {"username": "u", "password": "p"}])
def test_a_plugin_is_not_asked_when_something_else_says_who_we_are(other: dict[str, Any]) -> None:
    assert parse(config(user={**other, "exec": plugin()})).credentials.plugin is None


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://host:6443/", "https://host:6443"),
        ("https://host/prefix/", "https://host/prefix"),
        ("https://host/prefix?x=1#y", "https://host/prefix"),
        ("https://[::1]:6443", "https://[::1]:6443"),
        ("host:8080", "http://host:8080"),
    ],
)
def test_servers(server: str, expected: str) -> None:
    assert parse(config({"server": server})).server == expected


def test_nothing_secret_goes_to_a_server_without_encryption() -> None:
    access = parse(config({"server": "http://host:8080"}, {"token": "abc"}))
    assert access == ClusterAccess("http://host:8080")


def test_other_contexts_may_be_broken() -> None:
    data = config()
    data["clusters"].append({"name": "other", "cluster": {"proxy-url": "gopher://x"}})
    data["contexts"].append({"name": "other", "context": {"cluster": "nowhere"}})
    assert parse(data).server == SERVER


BOTH = {"client-certificate": "a", "client-certificate-data": encoded(b"x"), "client-key": "k"}
WRONG = [
    (
        config(None, None, **{"current-context": ""}),
        "current-context: no context chosen: expected one of the contexts (clean)",
    ),
    (config(None, None, **{"current-context": "x"}), "current-context: context was not found for specified context: x"),
    (config(contexts=[{"name": "clean", "context": {"cluster": "a", "user": "b"}}]), 'user "b" was not found for con'),
    (config(contexts=[{"name": "clean", "context": {"cluster": "a", "user": "b"}}]), 'cluster "a" was not found for'),
    (config(contexts=[{"name": "clean", "context": {}}]), 'user was not specified for context "clean"'),
    (config(contexts=[{"name": "clean", "context": {}}]), 'cluster was not specified for context "clean"'),
    (config(clusters=[{"name": "clean", "cluster": {}}]), "clusters[0].cluster: cluster has no server defined"),
    (config(clusters=[{"name": "clean", "cluster": {"tls-server-name": "x"}}]), 'no server found for cluster "clean"'),
    (config({"server": "https://:x"}), "clusters[0].cluster.server: host must be a URL or a host:port pair"),
    (config({"server": "ftp://host"}), 'host must be a URL or a host:port pair: "ftp://host"'),
    (config({"proxy-url": "gopher://x"}), 'unsupported scheme "gopher", must be http, https, or socks5'),
    (
        config({"certificate-authority": "a", "certificate-authority-data": encoded(b"x")}),
        "certificate-authority-data and certificate-authority are both specified for clean. "
        "certificate-authority-data will override.",
    ),
    (
        config({"certificate-authority": "a", "insecure-skip-tls-verify": True}),
        "specifying a root certificates file with the insecure flag is not allowed",
    ),
    (config(user={"client-certificate": "a"}), "client-key-data or client-key must be specified for clean to use the "),
    (config(user=BOTH), "client-cert-data and client-cert are both specified for clean. client-cert-data will overrid"),
    (config(user={"token": "a", "username": "b"}), "found [token basicAuth], only one is allowed"),
    (config(user={"exec": {}}), "command must be specified for clean to use exec authentication plugin"),
    (config(user={"exec": {"command": "x"}}), "apiVersion must be specified for clean to use exec authentication plu"),
    (config(user={"exec": {"command": "x", "apiVersion": "v9"}}), 'exec plugin: invalid apiVersion "v9"'),
    (config(user={"exec": plugin(apiVersion="client.authentication.k8s.io/v1")}), "interactiveMode must be specified "),
    (config(user={"exec": plugin(interactiveMode="Maybe")}), 'invalid interactiveMode for clean: "Maybe"'),
    (config(user={"exec": plugin(env=[{"value": "x"}])}), "env variable name must be specified for clean"),
    (config(user={"auth-provider": {"name": "gcp"}}), 'no Auth Provider found for name "gcp"'),
    (config(user={"as": "admin"}), "users[0].user.as: a node acts as itself"),
    (config(kind="Pod"), 'no kind "Pod" is registered for version "v1"'),
    ({"kind": "Config"}, "no configuration has been provided"),
    (config(user={"token": 12}), "users[0].user.token: expected a string; put quotes around it"),
    (config(user={"token": "schlüssel"}), "users[0].user.token: expected a token of ASCII characters"),
]


@pytest.mark.parametrize(("data", "text"), WRONG)
def test_mistakes_are_named_with_file_and_field(data: dict[str, Any], text: str) -> None:
    told = problems(data)
    assert told.startswith(f"{FILE}: invalid configuration: ")
    assert text in told


def test_mistakes_have_lines() -> None:
    raw = b"clusters:\n- name: a\n  cluster:\n    server: true\n"
    with pytest.raises(KubeconfigError, match=r"line 4: clusters\[0\]\.cluster\.server: expected a string"):
        parse_kubeconfig(raw, FILE)


@pytest.mark.parametrize("raw", [b"", b"a: [", b"\x7fELF", b"--- 1\n--- 2\n", b"[]", b"\xff"])
def test_what_is_no_kubeconfig_is_refused(raw: bytes) -> None:
    with pytest.raises(KubeconfigError):
        parse_kubeconfig(raw, FILE)


def test_secrets_are_neither_in_problems_nor_in_representations() -> None:
    user = {"client-certificate-data": encoded(b"C"), "client-key-data": "s3cret!", "password": ["s3cret"]}
    assert "s3cret" not in problems(config(user=user))
    good = {"client-certificate-data": encoded(b"C"), "client-key-data": encoded(b"s3cret"), "token": "s3cret"}
    assert "s3cret" not in repr(parse(config(user=good)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="none: invalid configuration: cannot be read: No such file"):
        read_kubeconfig(tmp_path / "none")


def test_missing_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("x")
    file = tmp_path / "conf"
    file.write_text(yaml.safe_dump(config(user={"client-certificate": "c.pem", "client-key": "k.pem"})))
    assert missing_files(read_kubeconfig(file)) == (
        f"unable to read client-key {tmp_path}/k.pem due to No such file or directory",
    )


def test_a_kubeconfig_written_after_a_bootstrap_is_read_back(tmp_path: Path) -> None:
    bootstrap = parse(
        config({"certificate-authority-data": encoded(b"CA"), "tls-server-name": "k", "proxy-url": "http://p:1"})
    )
    file, pem = tmp_path / "folder" / "kubelet.conf", tmp_path / "kubelet-client-current.pem"
    write_bootstrapped(file, bootstrap, pem)
    write_bootstrapped(file, bootstrap, pem)
    access = read_kubeconfig(file)
    assert access.file == file
    assert attrs.evolve(access, credentials=bootstrap.credentials) == bootstrap
    assert access.credentials.certificate == access.credentials.key == pem
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["kubelet.conf"]
    data = yaml.safe_load(file.read_text())
    assert data["contexts"] == [
        {
            "name": "default-context",
            "context": {"cluster": "default-cluster", "user": "default-auth", "namespace": "default"},
        }
    ]


def test_in_a_cluster_the_service_account_is_used(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(NotInClusterError, match="token: No such file"):
        in_cluster_access(environment, tmp_path)
    (tmp_path / "token").write_text("t")
    access = in_cluster_access(environment, tmp_path)
    assert access.server == "https://[fd00::1]:443"
    assert access.credentials.token_file == tmp_path / "token"
    assert access.tls.authority is None
    (tmp_path / "ca.crt").write_text("c")
    assert in_cluster_access(environment, tmp_path).tls.authority == tmp_path / "ca.crt"


def test_outside_of_a_cluster_there_is_no_service_account() -> None:
    with pytest.raises(NotInClusterError) as failed:
        in_cluster_access({"KUBERNETES_SERVICE_HOST": "x"})
    assert str(failed.value) == (
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )
