"""Compose and Kubernetes files parse, run every desk with settings that exist, and mount what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.roles import ROLES, load_settings
from wire.environment import ENV_PREFIX, OTHER_NAMES
from wire.flags import parse_flag_pairs

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
OBJECTS = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "headrace.yaml").read_text())["items"]
DEPLOYMENTS = {item["metadata"]["name"]: item for item in OBJECTS if item["kind"] == "Deployment"}


def check_command(command: list[str], role: str) -> None:
    """Assert that `headrace COMMAND` is a way to run a role."""
    assert command[:2] == ["serve", role]
    load_settings([role], parse_flag_pairs(command[2:]))


def check_names(names: set[str]) -> None:
    fields = {field for role in ROLES for field in load_settings([role], {})[role].__struct_fields__}
    known = {ENV_PREFIX + name.upper() for name in fields} | {ENV_PREFIX + name for name in OTHER_NAMES}
    assert {name for name in names if name.startswith(ENV_PREFIX)} <= known


@pytest.mark.parametrize("role", ROLES)
def test_compose_runs_every_desk_unprivileged_and_watched(role: str) -> None:
    service = COMPOSE["services"][role]
    check_command(service["command"], role)
    check_names(set(service["environment"]))
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["healthcheck"]["test"]
    assert service["depends_on"]["pull"]["condition"] == "service_completed_successfully"


def test_compose_builds_the_image_of_all_desks_once_and_before_they_start() -> None:
    services = COMPOSE["services"]
    assert [name for name, service in services.items() if "build" in service] == ["pull"]
    for role in ROLES:
        assert services[role]["image"] == services["pull"]["image"]
        assert "pull" in services[role]["depends_on"]


def test_a_shell_set_up_for_compose_can_run_the_command_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(re.findall(r"\$\{(HEADRACE_\w+)", "".join(map(str, COMPOSE.values()))))
    assert {"HEADRACE_PASSWORD", "HEADRACE_BUS_MEMORY"} <= names
    check_names(names)
    for name in names - {"HEADRACE_PORT", "HEADRACE_PARTITIONS"}:
        monkeypatch.setenv(name, "x")
    load_settings(["edge"], {})


def test_compose_publishes_on_loopback_only() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_mounts_files_and_volumes_that_exist() -> None:
    for name, service in COMPOSE["services"].items():
        for source in (mount.split(":")[0] for mount in service.get("volumes", [])):
            assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], (name, source)


def test_a_desk_has_longer_to_stop_than_it_takes_to_drain() -> None:
    for role in ROLES:
        drain_s = load_settings([role], {})[role].drain_s
        assert int(COMPOSE["services"][role]["stop_grace_period"].removesuffix("s")) > drain_s
        pod = DEPLOYMENTS[role]["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > pause_s(pod) + settings_of(pod, role).drain_s


def test_compose_waits_for_replicas_until_they_have_loaded() -> None:
    service = COMPOSE["services"]["model"]
    alive, ready = (service["environment"][f"HEADRACE_{name}_FILE"] for name in ("ALIVE", "READY"))
    check = service["healthcheck"]
    assert f"test -e {ready} &&" in check["test"][1]
    assert f"find {alive} " in check["test"][1]
    assert int(check["start_period"].removesuffix("s")) >= 600


def test_a_rolling_update_cuts_no_stream_and_takes_no_replica_before_the_next_has_loaded() -> None:
    edge, model = (DEPLOYMENTS[role]["spec"] for role in ("edge", "model"))
    pod = edge["template"]["spec"]
    settings = settings_of(pod, "edge")
    assert settings.drain_s >= settings.request_timeout_s
    assert pause_s(pod) > pod["containers"][0]["readinessProbe"]["periodSeconds"]  # no new connection comes any more
    assert model["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    # An edge without a replica still takes what can wait for one: only the desk's own life counts.
    assert edge["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/health/live"
    files = next(item["data"] for item in OBJECTS if item["kind"] == "ConfigMap")
    for role in set(DEPLOYMENTS) - {"edge"}:
        (container,) = DEPLOYMENTS[role]["spec"]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["exec"]["command"] == ["test", "-e", files["HEADRACE_READY_FILE"]]
        assert container["startupProbe"]["exec"]["command"] == ["test", "-e", files["HEADRACE_ALIVE_FILE"]]
        assert files["HEADRACE_ALIVE_FILE"] in container["livenessProbe"]["exec"]["command"][-1]


def settings_of(pod: dict[str, Any], role: str) -> Any:
    flags = parse_flag_pairs(pod["containers"][0]["args"][2:])
    return load_settings([role], flags)[role]


def pause_s(pod: dict[str, Any]) -> int:
    """How long a pod goes on after it was told to end, before it begins to."""
    hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    return int(hook[1])


@pytest.mark.parametrize("role", ROLES)
def test_kubernetes_runs_every_desk_with_probes(role: str) -> None:
    deployment = DEPLOYMENTS[role]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    check_command(container["args"], role)
    check_names({variable["name"] for variable in container["env"]})
    assert container["livenessProbe"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
    assert pod["securityContext"]["runAsUser"] == 10001


def test_kubernetes_settings_and_references_exist() -> None:
    config = next(item for item in OBJECTS if item["kind"] == "ConfigMap")
    check_names(set(config["data"]))
    services = {item["metadata"]["name"] for item in OBJECTS if item["kind"] == "Service"}
    workloads = {item["metadata"]["name"] for item in OBJECTS if item["kind"] in ("Deployment", "StatefulSet")}
    assert services <= workloads


def test_every_pod_meets_kubernetes_restricted_standard() -> None:
    for item in (item for item in OBJECTS if item["kind"] in ("Deployment", "StatefulSet")):
        pod = item["spec"]["template"]["spec"]
        name = item["metadata"]["name"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            locked = container["securityContext"]
            assert (locked["allowPrivilegeEscalation"], locked["capabilities"]) == (False, {"drop": ["ALL"]}), name
            assert locked["readOnlyRootFilesystem"] is True, name
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name


def test_the_patch_for_cards_fits_the_replicas_and_asks_for_one() -> None:
    patch = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "gpu.yaml").read_text())["spec"]
    assert patch["strategy"]["rollingUpdate"]["maxSurge"] == 0  # a cluster has no card to spare
    (change,) = patch["template"]["spec"]["containers"]
    for name in ("model", "prefill"):
        (container,) = DEPLOYMENTS[name]["spec"]["template"]["spec"]["containers"]
        assert change["name"] == container["name"]
        dropped = {variable["name"] for variable in change["env"] if variable.get("$patch") == "delete"}
        assert dropped <= {variable["name"] for variable in container["env"]}
    check_names({variable["name"] for variable in change["env"]})
    assert change["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_an_emptied_node_takes_one_of_a_kind_at_a_time() -> None:
    budgets = {item["metadata"]["name"]: item["spec"] for item in OBJECTS if item["kind"] == "PodDisruptionBudget"}
    assert budgets.keys() == DEPLOYMENTS.keys()
    for name, budget in budgets.items():
        assert budget["selector"] == DEPLOYMENTS[name]["spec"]["selector"]
        assert 0 < budget["maxUnavailable"] < DEPLOYMENTS[name]["spec"]["replicas"] or name == "prefill"


def policy(name: str) -> dict[str, Any]:
    kept = (item for item in OBJECTS if item["kind"] == "NetworkPolicy" and item["metadata"]["name"] == name)
    return dict(next(kept)["spec"])


def test_only_our_own_desks_reach_the_bus() -> None:
    assert policy("bus")["podSelector"]["matchLabels"] == {"app": "bus"}
    ((rule,),) = ([source["podSelector"] for source in ingress["from"]] for ingress in policy("bus")["ingress"])
    assert set(rule["matchExpressions"][0]["values"]) == DEPLOYMENTS.keys()


def test_replicas_exchange_blocks_and_nobody_else_reaches_the_port() -> None:
    replicas = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["model", "prefill"]}]}
    assert policy("blocks")["podSelector"] == replicas
    blocks, metrics = policy("blocks")["ingress"]
    for name, role in (("model", "both"), ("prefill", "prefill")):
        settings = settings_of(DEPLOYMENTS[name]["spec"]["template"]["spec"], "model")
        assert (settings.kv_host, settings.role) == ("auto", role)
        assert blocks == {"from": [{"podSelector": replicas}], "ports": [{"port": settings.kv_port}]}
        command = COMPOSE["services"][name]["command"]
        composed = load_settings(["model"], parse_flag_pairs(command[2:]))["model"]
        assert (composed.kv_host, composed.role) == ("auto", role)  # type: ignore[attr-defined]
    assert metrics == {"ports": [{"port": 9100}]}


def test_desks_of_every_kind_are_scraped() -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert set(scraped["dns_sd_configs"][0]["names"]) == DEPLOYMENTS.keys() <= COMPOSE["services"].keys()


def test_the_bus_refuses_writes_before_it_is_killed_for_memory() -> None:
    (bus,) = next(item for item in OBJECTS if item["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert bus["args"][bus["args"].index("--maxmemory") + 1] == "1gb"
    assert bus["resources"]["limits"]["memory"] == "2Gi"
    assert "--maxmemory" in COMPOSE["services"]["bus"]["command"]


def test_replicas_are_scaled_by_what_exists() -> None:
    path = ROOT / "deploy" / "kubernetes" / "autoscale.yaml"
    scalers = yaml.safe_load(path.read_text())["items"]
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]["name"]
        assert scaler["spec"]["minReplicas"] == DEPLOYMENTS[target]["spec"]["replicas"]
    asked = {
        metric["external"]["metric"]["name"]
        for scaler in scalers
        for metric in scaler["spec"]["metrics"]
        if metric["type"] == "External"
    }
    rules = yaml.safe_load("\n".join(re.findall(r"^#   (.*)$", path.read_text(), re.MULTILINE)))
    assert {rule["name"]["as"] for rule in rules} == asked
    for rule in rules:  # that dashboards ask for exists (test_dashboards)
        assert rule["seriesQuery"] in rule["metricsQuery"]
        assert rule["seriesQuery"] in (ROOT / "deploy" / "grafana" / "dashboards" / "headrace.json").read_text()


def test_the_image_holds_every_package_and_runs_as_the_user_of_the_manifests() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "scratch"}
    assert packages
    assert packages <= set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    assert "--uid 10001" in text


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").rglob("*.y*ml")), ids=lambda path: path.name)
def test_every_file_is_yaml_that_says_what_it_is_for(path: Path) -> None:
    content: Any = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    assert path.read_text().startswith("#")
