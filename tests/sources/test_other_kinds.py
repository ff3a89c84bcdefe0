"""What people have that is no pod, and who would run it."""

from __future__ import annotations

import pytest
import yaml

from trikubelet.sources.other_kinds import what_runs

COMPOSE = """
services:
  web: {image: "nginx:1", ports: ["8080:80"]}
  db: {image: "postgres:16", environment: {A: b}}
volumes: {data: }
"""
CHART = "apiVersion: v2\nname: web\nversion: 1.2.3\ntype: application\nappVersion: '9'\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{apiVersion: apps/v1, kind: Deployment}", "write a Pod of its spec.template"),
        ("{apiVersion: apps/v1, kind: StatefulSet}", "in the place of volumeClaimTemplates"),
        ("{apiVersion: batch/v1, kind: Job}", "a controller of a cluster"),
        ("{apiVersion: batch/v1, kind: CronJob}", "spec.jobTemplate.spec.template"),
        ("{apiVersion: v1, kind: Service}", "hostPort"),
        ("{apiVersion: networking.k8s.io/v1, kind: Ingress}", "hostPort"),
        ("{apiVersion: v1, kind: ConfigMap}", "env"),
        ("{apiVersion: v1, kind: PersistentVolumeClaim}", "hostPath"),
        ("{apiVersion: v1, kind: List, items: []}", "PodList"),
        ("{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration}", "--config"),
        ("{apiVersion: v1, kind: Config}", "--kubeconfig"),
        ("{apiVersion: kustomize.config.k8s.io/v1beta1, kind: Kustomization}", "kubectl kustomize"),
        ("{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization}", "Flux"),
        ("{resources: [a.yaml], namePrefix: x-}", "kubectl kustomize"),
        ("{apiVersion: helm.cattle.io/v1, kind: HelmChart}", "the Helm controller"),
        ("{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor}", "an operator there acts on it"),
        ("{apiVersion: v1, kind: Binding}", "kubectl apply"),
        ("{apiVersion: v1, kind: pod}", "did you mean Pod?"),
        ("{apiVersion: v1, kind: Pods}", "did you mean Pod?"),
        ("{apiVersion: v1, kind: podList}", "did you mean PodList?"),
        ("{apiVersion: v1, kind: [x]}", "the agent runs pods only"),
        ("{metadata: {name: a}, spec: {containers: []}}", "apiVersion: v1 and kind: Pod"),
        ("{a: b}", "apiVersion: v1 and kind: Pod"),
        (COMPOSE, "docker compose up"),
        (CHART, "helm template"),
    ],
)
def test_what_is_no_pod_is_told_who_would_run_it(text: str, part: str) -> None:
    assert part in what_runs(yaml.safe_load(text))


def test_a_kind_of_any_length_costs_nothing() -> None:
    assert what_runs({"apiVersion": "v1", "kind": "Pod" * 100_000}) == "the agent runs pods only"
