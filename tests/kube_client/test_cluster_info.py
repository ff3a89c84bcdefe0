"""What newcomers know of a cluster by a token and a hash. The vectors are those of Kubernetes' own tests."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.kube_client.cluster_info import (
    BootstrapToken,
    DiscoveryError,
    UnsignedError,
    detached_signature,
    joinable_cluster,
    key_hash,
    parse_hash,
    signed_kubeconfig,
)

TOKEN = BootstrapToken.parse("abcdef.0123456789abcdef")
# cluster-bootstrap/token/jws.
CONTENT = "Hello from the other side. I must have called a thousand times."
HEADER = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9"
# kubeadm's pubkeypin. The hash is what openssl says, too.
AUTHORITY = b"""-----BEGIN CERTIFICATE-----
MIIDRDCCAiygAwIBAgIJAJgVaCXvC6HkMA0GCSqGSIb3DQEBBQUAMB8xHTAbBgNV
BAMTFGt1YmVhZG0ta2V5cGlucy10ZXN0MCAXDTE3MDcwNTE3NDMxMFoYDzIxMTcw
NjExMTc0MzEwWjAfMR0wGwYDVQQDExRrdWJlYWRtLWtleXBpbnMtdGVzdDCCASIw
DQYJKoZIhvcNAQEBBQADggEPADCCAQoCggEBAK0ba8mHU9UtYlzM1Own2Fk/XGjR
J4uJQvSeGLtz1hID1IA0dLwruvgLCPadXEOw/f/IWIWcmT+ZmvIHZKa/woq2iHi5
+HLhXs7aG4tjKGLYhag1hLjBI7icqV7ovkjdGAt9pWkxEzhIYClFMXDjKpMSynu+
YX6nZ9tic1cOkHmx2yiZdMkuriRQnpTOa7bb03OC1VfGl7gHlOAIYaj4539WCOr8
+ACTUMJUFEHcRZ2o8a/v6F9GMK+7SC8SJUI+GuroXqlMAdhEv4lX5Co52enYaClN
+D9FJLRpBv2YfiCQdJRaiTvCBSxEFz6BN+PtP5l2Hs703ZWEkOqCByM6HV8CAwEA
AaOBgDB+MB0GA1UdDgQWBBRQgUX8MhK2rWBWQiPHWcKzoWDH5DBPBgNVHSMESDBG
gBRQgUX8MhK2rWBWQiPHWcKzoWDH5KEjpCEwHzEdMBsGA1UEAxMUa3ViZWFkbS1r
ZXlwaW5zLXRlc3SCCQCYFWgl7wuh5DAMBgNVHRMEBTADAQH/MA0GCSqGSIb3DQEB
BQUAA4IBAQCaAUif7Pfx3X0F08cxhx8/Hdx4jcJw6MCq6iq6rsXM32ge43t8OHKC
pJW08dk58a3O1YQSMMvD6GJDAiAfXzfwcwY6j258b1ZlI9Ag0VokvhMl/XfdCsdh
AWImnL1t4hvU5jLaImUUMlYxMcSfHBGAm7WJIZ2LdEfg6YWfZh+WGbg1W7uxLxk6
y4h5rWdNnzBHWAGf7zJ0oEDV6W6RSwNXtC0JNnLaeIUm/6xdSddJlQPwUv8YH4jX
c1vuFqTnJBPcb7W//R/GI2Paicm1cmns9NLnPR35exHxFTy+D1yxmGokpoPMdife
aH+sfuxT8xeTPb3kjzF9eJTlnEquUDLM
-----END CERTIFICATE-----
"""
HASH = "sha256:345959acb2c3b2feb87d281961c893f62a314207ef02599f1cc4a5fb255480b3"


def info(authority: bytes = AUTHORITY, server: str = "https://10.0.0.1:6443") -> str:
    cluster = {"server": server, "certificate-authority-data": b64encode(authority).decode()}
    return json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]})


@pytest.mark.parametrize(
    ("content", "secret", "signature"),
    [
        (CONTENT, "my voice is my passcode", "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"),
        ("", "my voice is my passcode", "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
        (CONTENT, "", "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
    ],
)
def test_signatures_are_those_of_the_control_plane(content: str, secret: str, signature: str) -> None:
    assert detached_signature(content, "joshua", secret) == f"{HEADER}..{signature}"


def test_the_hash_is_that_of_the_authority_s_public_key() -> None:
    assert key_hash(x509.load_pem_x509_certificate(AUTHORITY)) == HASH
    assert parse_hash(HASH.upper()) == HASH


@pytest.mark.parametrize("text", ["", HASH[7:], HASH + "0", HASH[:-1], HASH[:-1] + "g", "sha512:" + HASH[7:]])
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(DiscoveryError, match="expected the hash"):
        parse_hash(text)


@pytest.mark.parametrize("text", ["", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "a" * 23 + "\n"])
def test_what_is_no_token_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(DiscoveryError) as refused:
        BootstrapToken.parse(text)
    assert not text or text not in str(refused.value)


def test_the_secret_of_a_token_is_not_shown() -> None:
    assert "0123456789abcdef" not in repr(TOKEN)
    assert TOKEN.text == "abcdef.0123456789abcdef"


def test_what_is_signed_with_the_token_is_believed() -> None:
    data = {"kubeconfig": info(), "jws-kubeconfig-abcdef": detached_signature(info(), TOKEN.id, TOKEN.secret)}
    assert signed_kubeconfig(data, TOKEN) == info()


@given(position=st.integers(min_value=0), other=st.characters(codec="utf-8"))
def test_nothing_of_what_is_signed_can_be_another(position: int, other: str) -> None:
    signature = detached_signature(info(), TOKEN.id, TOKEN.secret)
    changed = list(info())
    changed[position % len(changed)] = other
    text = "".join(changed)
    if text != info():
        with pytest.raises(DiscoveryError, match="not signed with"):
            signed_kubeconfig({"kubeconfig": text, "jws-kubeconfig-abcdef": signature}, TOKEN)


@pytest.mark.parametrize("signature", ["x", "..", "ünsinn", detached_signature(info(), "abcdef", "0123456789abcdee")])
def test_a_signature_with_another_secret_is_refused(signature: str) -> None:
    with pytest.raises(DiscoveryError, match="second half is wrong") as refused:
        signed_kubeconfig({"kubeconfig": info(), "jws-kubeconfig-abcdef": signature}, TOKEN)
    assert TOKEN.secret not in str(refused.value)


def test_a_token_without_a_signature_is_unknown_or_has_expired() -> None:
    with pytest.raises(UnsignedError, match="has expired"):
        signed_kubeconfig({"kubeconfig": info(), "jws-kubeconfig-fedcba": "x"}, TOKEN)
    with pytest.raises(DiscoveryError, match="nobody can join"):
        signed_kubeconfig({}, TOKEN)


def test_the_authority_is_one_of_those_that_are_pinned() -> None:
    cluster = joinable_cluster(info(), TOKEN, ["sha256:" + "0" * 64, HASH])
    assert cluster.authority == AUTHORITY
    assert (cluster.access.server, cluster.access.credentials.token) == ("https://10.0.0.1:6443", TOKEN.text)
    both = trustme.CA().cert_pem.bytes() + AUTHORITY
    assert joinable_cluster(info(both), TOKEN, [HASH]).authority == both, "while authorities are changed there are two"
    with pytest.raises(DiscoveryError, match=HASH):
        joinable_cluster(info(), TOKEN, ["sha256:" + "0" * 64])


def test_only_the_server_and_its_authority_are_taken_from_the_cluster() -> None:
    said = json.loads(info())
    said["clusters"][0]["cluster"] |= {"insecure-skip-tls-verify": True, "proxy-url": "http://evil:1"}
    access = joinable_cluster(json.dumps(said), TOKEN, []).access
    assert (access.tls.insecure, access.proxy_url) == (False, "")


@pytest.mark.parametrize(
    ("kubeconfig", "problem"),
    [
        ("clusters: []", "one cluster"),
        ("a: [", "cannot be read"),
        ("clusters: [{cluster: {server: 'https://a'}}]", "no usable certificate"),
        (info(b"nonsense"), "no usable certificate"),
        (info(server="http://10.0.0.1"), "one of https"),
        (info(server="10.0.0.1 6443"), "server"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_told(kubeconfig: str, problem: str) -> None:
    with pytest.raises(DiscoveryError, match=problem):
        joinable_cluster(kubeconfig, TOKEN, [])
