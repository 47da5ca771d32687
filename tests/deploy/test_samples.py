"""What `deploy/` holds fits the gateway that it deploys: rules, units and manifests, each by its own tool."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.admin.measures.collectors import ListSizeCollector, UpstreamCollector
from mcproxy.configuration.loading import load
from mcproxy.settings import Proxy
from mcproxy.telemetry.metrics import Metrics
from tests.deploy.needs import DEPLOY, need

MANIFESTS = DEPLOY / "kubernetes"


def documents(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".yaml", ".yml"})


def run(*arguments: object) -> str:
    done = subprocess.run([str(part) for part in arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def manifest(name: str) -> Any:
    """The first document of a file."""
    return next(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("path", documents(DEPLOY), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_document_is_yaml(path: Path) -> None:
    assert all(yaml.safe_load_all(path.read_text()))


def test_each_alarm_goes_off_for_what_it_is_for() -> None:
    run(need("promtool"), "check", "rules", DEPLOY / "prometheus/rules.yml", DEPLOY / "prometheus/alerts.yml")
    run(need("promtool"), "test", "rules", DEPLOY / "prometheus/alerts_test.yml")


def test_prometheus_understands_its_configuration() -> None:
    run(need("promtool"), "check", "config", DEPLOY / "prometheus/prometheus.yml")


def test_each_alarm_has_a_test_a_severity_and_says_what_to_do() -> None:
    tested = (DEPLOY / "prometheus/alerts_test.yml").read_text()
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert f"alertname: {rule['alert']}" in tested
            assert rule["labels"]["severity"] in {"page", "ticket"}
            assert set(rule["annotations"]) == {"summary", "description", "action"}


@pytest.mark.parametrize(
    "name", ["prometheus/rules.yml", "prometheus/alerts.yml", "grafana/fleet.json", "grafana/upstream.json"]
)
def test_every_series_that_is_asked_for_is_one_of_ours(name: str) -> None:
    registry = Metrics().registry
    registry.register(UpstreamCollector(list))
    registry.register(ListSizeCollector(list))
    known = {family.name for family in registry.collect()}
    asked = set(re.findall(r"\b((?:mcproxy|process)_[a-z_]+)", (DEPLOY / name).read_text()))
    parts = re.compile(r"_(total|bucket|sum|count|info)$")
    assert {series for series in asked if series not in known and parts.sub("", series) not in known} == set()


def test_the_probes_ask_what_the_gateway_answers() -> None:
    pod = manifest("deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["ports"][0] == {"name": "http", "containerPort": Proxy().port}
    assert pod["terminationGracePeriodSeconds"] > Proxy().shutdown_grace * 2


def test_everything_selects_the_pods() -> None:
    labels = manifest("deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("service")["spec"]["selector"] == labels
    assert manifest("disruption")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("network")["spec"]["podSelector"]["matchLabels"] == labels
    assert manifest("replicas")["spec"]["selector"] == labels
    assert manifest("autoscaler")["spec"]["scaleTargetRef"]["name"] == manifest("deployment")["metadata"]["name"]
    assert manifest("monitor")["spec"]["selector"]["matchLabels"] == manifest("service")["metadata"]["labels"]


def test_kustomize_names_every_manifest() -> None:
    named = manifest("kustomization")["resources"]
    own = {"kustomization.yaml", "mcproxy.yaml"}
    assert sorted(named) == sorted(path.name for path in documents(MANIFESTS) if path.name not in own)


def test_the_dashboards_say_what_each_panel_is() -> None:
    for path in (DEPLOY / "grafana").glob("*.json"):
        board = json.loads(path.read_text())
        titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
        assert len(titles) == len(set(titles))
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        assert len(places) == len(set(places))


def test_the_unit_is_one_that_systemd_understands(unit: Path) -> None:
    run(need("systemd-analyze"), "verify", unit)


def test_the_unit_leaves_the_service_little_that_it_could_harm(unit: Path) -> None:
    run(need("systemd-analyze"), "security", "--no-pager", "--offline=true", "--threshold=20", unit)


def test_the_unit_hides_nothing_that_the_metrics_of_the_process_are_read_from(unit: Path) -> None:
    """prometheus_client reads /proc/stat, without which it has none of `process_*`; Node counts processors there."""
    assert "\nProcSubset=" not in unit.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's place")
def test_the_service_s_user_may_read_the_configuration_and_no_secret() -> None:
    """A folder of root's, as systemd makes it for ConfigurationDirectory= (systemd.exec(5)): it is not the user's."""
    service = dict(
        line.split("=", 1) for line in (DEPLOY / "systemd/mcproxy.service").read_text().splitlines() if "=" in line
    )
    assert service["DynamicUser"] == "yes"
    assert "--config /etc/mcproxy/mcproxy.yaml" in service["ExecStart"]
    assert service["EnvironmentFile"] == "-/etc/mcproxy/environment"
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(int(service["ConfigurationDirectoryMode"], 8))
        for name, mode in (("mcproxy.yaml", 0o644), ("environment", 0o600)):
            file = Path(made, name)
            file.touch()
            file.chmod(mode)
        codes = [
            subprocess.run(["cat", f"{made}/{name}"], user=65534, group=65534, extra_groups=[], check=False).returncode
            for name in ("mcproxy.yaml", "environment")
        ]
    assert codes == [0, 1]


def test_the_image_asks_the_gateway_by_its_own_configuration_and_can_trace() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert 'CMD ["mcproxy", "health"]' in dockerfile
    assert "--requirement requirements.lock" in dockerfile
    locked = (DEPLOY.parent / "requirements.lock").read_text()
    assert "\nopentelemetry-sdk==" in locked
    assert "\nopentelemetry-exporter-otlp-proto-http==" in locked


def test_the_image_of_the_composed_gateway_has_what_its_servers_are_started_with() -> None:
    stage = (DEPLOY / "Dockerfile").read_text().partition(" AS servers\n")[2]
    installed = {"npx": "/usr/local/bin/npx", "uvx": "uv==", "mcp-server-git": "--yes git "}
    for upstream in load(DEPLOY / "mcproxy.yaml", KNOWN).upstreams:
        for word in [upstream.command, *upstream.args]:
            assert installed.get(str(word), "") in stage


@pytest.fixture(params=["mcproxy", "mcproxy@"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With a program that is there."""
    file = tmp_path / f"{request.param}.service"
    text = (DEPLOY / f"systemd/{request.param}.service").read_text()
    file.write_text(text.replace("/opt/mcproxy/bin/mcproxy", "/bin/true"))
    return file


def test_the_images_are_built_as_they_should_be() -> None:
    run(need("hadolint"), DEPLOY / "Dockerfile")


@pytest.mark.parametrize("name", ["compose.yaml", "replicas/compose.yaml"])
def test_the_services_are_what_compose_understands(name: str) -> None:
    run(need("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / name)


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_manifests_are_what_kubernetes_understands(version: str) -> None:
    others = {"kustomization.yaml", "mcproxy.yaml", "monitor.yaml"}  # the last is the Prometheus operator's
    manifests = [path for path in documents(MANIFESTS) if path.name not in others]
    run(need("kubernetes-validate"), "--strict", "--kubernetes-version", version, *manifests)


KNOWN = {
    "MCPROXY_SECRET": "0123456789abcdef",
    "MCPROXY_KEY_SHA256": "0" * 64,
    "GITHUB_TOKEN": "t",
    "POD_IP": "10.0.0.7",
    "HOSTNAME": "replica",
}


def test_replicas_in_kubernetes_reach_each_other_and_valkey_and_no_other_pod_does() -> None:
    settings = load(DEPLOY / "kubernetes/mcproxy.yaml", KNOWN)
    (container,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.cluster.address == ("0.0.0.0", ports["replicas"])
    assert settings.cluster.advertise == f"http://10.0.0.7:{ports['replicas']}"
    assert {"fieldRef": {"fieldPath": "status.podIP"}} in [entry.get("valueFrom") for entry in container["env"]]
    headless = manifest("replicas")["spec"]
    assert (headless["clusterIP"], headless["ports"][0]["targetPort"]) == ("None", "replicas")
    service, valkey, policy = yaml.safe_load_all((MANIFESTS / "valkey.yaml").read_text())
    assert settings.cluster.redis == f"redis://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/0"
    assert policy["spec"]["podSelector"]["matchLabels"] == valkey["spec"]["template"]["metadata"]["labels"]
    callers = [source for rule in policy["spec"]["ingress"] for source in rule["from"]]
    assert callers == [{"podSelector": manifest("deployment")["spec"]["selector"]}]
    admitted = [rule for rule in manifest("network")["spec"]["ingress"] if {"port": "replicas"} in rule["ports"]]
    assert [rule["from"] for rule in admitted] == [callers]
    assert "sessionAffinity" not in manifest("service")["spec"]


def test_the_composed_replicas_share_valkey_and_no_client_reaches_what_is_between_them() -> None:
    composed = yaml.safe_load((DEPLOY / "replicas/compose.yaml").read_text())
    services, settings = composed["services"], load(DEPLOY / "replicas/mcproxy.yaml", KNOWN)
    assert services["mcproxy"]["deploy"]["replicas"] == 3
    assert settings.cluster.redis == "redis://valkey:6379/0"
    assert settings.cluster.advertise == f"http://replica:{settings.cluster.address[1]}"
    assert composed["networks"]["inside"]["internal"]
    assert services["valkey"]["networks"] == ["inside"]
    assert "inside" not in services["nginx"]["networks"]
    assert [name for name, service in services.items() if "ports" in service] == ["nginx"]
    assert f"server mcproxy:{settings.proxy.port} " in (DEPLOY / "replicas/nginx.conf").read_text()


def test_each_replica_of_the_template_unit_has_ports_of_its_own(tmp_path: Path) -> None:
    ours, template = ((DEPLOY / f"systemd/{name}.service").read_text() for name in ("mcproxy", "mcproxy@"))
    (line,) = re.findall(r"^Environment=(MCPROXY_REPLICA=.*)$", template, re.MULTILINE)
    sample = "\n".join(text.removeprefix("#   ") for text in template.splitlines() if text.startswith("#   "))
    file = tmp_path / "mcproxy.yaml"
    file.write_text(f"{sample}\n")
    taken: list[int | None] = []
    for number in range(1, 10):
        named = dict(part.split("=") for part in line.replace("%i", str(number)).split())
        settings = load(file, {**KNOWN, **named})
        assert settings.cluster.name == f"{number}"
        taken += [settings.proxy.port, settings.cluster.address[1], settings.admin.port]
    assert len(set(taken)) == 27
    hardening = [text for text in ours.partition("CapabilityBoundingSet")[2].splitlines() if "=" in text]
    assert [text for text in hardening if text not in template] == []


@pytest.mark.parametrize("name", ["mcproxy.yaml", "kubernetes/mcproxy.yaml", "replicas/mcproxy.yaml"])
def test_each_configuration_is_valid_and_admits_no_request_without_credentials(name: str) -> None:
    settings = load(DEPLOY / name, KNOWN)
    assert settings.access.authentication.required
    assert not settings.proxy.insecure


def test_what_the_readme_says_of_access_is_a_valid_configuration(tmp_path: Path) -> None:
    readme = (DEPLOY.parent / "README.md").read_text()
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL) if block.startswith("access:"))
    file = tmp_path / "mcproxy.yaml"
    file.write_text(text.replace("9f2c…", "a" * 64))
    assert load(file, {}).access.authentication.required


def test_prometheus_scrapes_the_operators_listener_which_asks_for_no_key() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    composed = load(DEPLOY / "mcproxy.yaml", KNOWN)
    assert job["static_configs"] == [{"targets": [f"mcproxy:{composed.admin.port}"]}]
    assert "mcproxy" in composed.proxy.allowed_hosts
    deployed = load(DEPLOY / "kubernetes/mcproxy.yaml", KNOWN)
    (container,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    (scraped,) = manifest("monitor")["spec"]["endpoints"]
    ports = {port["name"]: port["targetPort"] for port in manifest("service")["spec"]["ports"]}
    assert {"name": ports[scraped["port"]], "containerPort": deployed.admin.port} in container["ports"]
