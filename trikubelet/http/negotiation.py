"""Which form of a page a client accepts, by the rules of the API server's `/statusz` and `/flagz`. Pure.

Text needs no asking for. A structured form has to be asked for with its kind, group and version, as in
`application/json;as=Statusz;g=config.k8s.io;v=v1beta1`, so that clients do not depend on an unstable format.
"""

from __future__ import annotations

from typing import Final

from trikubelet.formats.values import frozen

TEXT_FORM: Final = "text/plain"
FORMS: Final = ("application/json", "application/yaml", TEXT_FORM)
"""In the order in which they are tried for a clause with `*`."""
GROUP: Final = "config.k8s.io"
VERSIONS: Final = ("v1beta1", "v1alpha1")
DEPRECATED: Final = frozenset({"v1alpha1"})


@frozen
class Accepted:
    form: str
    version: str = ""
    """Of the structured forms."""


@frozen
class _Clause:
    media_type: str
    quality: float
    params: dict[str, str]


def negotiate(accept: str | None, kind: str) -> Accepted | None:
    """The best that is acceptable to the client; None when there is nothing.

    Source: apiserver's `negotiation.NegotiateOutputMediaType` with the restrictions of both pages.
    """
    if accept is None or not accept.strip():
        return Accepted(TEXT_FORM)
    clauses = sorted(map(_clause, accept.split(",")), key=lambda clause: -clause.quality)
    for clause in clauses:
        for form in FORMS:
            if _covers(clause.media_type, form) and (found := _acceptable(clause, form, kind)):
                return found
    return None


def _acceptable(clause: _Clause, form: str, kind: str) -> Accepted | None:
    target = {name: clause.params[name] for name in ("as", "g", "v") if name in clause.params}
    if clause.params.get("stream") or clause.params.get("sv"):
        return None
    if form == TEXT_FORM:
        return None if target else Accepted(form)
    version = target.get("v", "")
    if (target.get("as"), target.get("g")) == (kind, GROUP) and version in VERSIONS:
        return Accepted(form, version)
    return None


def _covers(wanted: str, form: str) -> bool:
    kind, _, _ = form.partition("/")
    return wanted in (form, f"{kind}/*", "*/*", "*")


def _clause(text: str) -> _Clause:
    media_type, *rest = (part.strip() for part in text.split(";"))
    params = {}
    for part in rest:
        name, _, value = part.partition("=")
        params[name.strip()] = value.strip()
    return _Clause(media_type.lower(), _quality(params.pop("q", "1")), params)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0
