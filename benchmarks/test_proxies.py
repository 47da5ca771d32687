"""The configurations under test, and what is asked of whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.proxies import MCPROXY, PROXIES, Scene, configuration
from benchmarks.variants import VARIANTS, merged
from benchmarks.workloads import WORKLOADS, ask_of
from mcproxy.configuration.loading import load_configuration
from mcproxy.protocol.eras import Era


@pytest.mark.parametrize("stdio", [False, True])
@pytest.mark.parametrize("variant", [name for name, more in VARIANTS.items() if more])
def test_every_variant_is_a_valid_configuration(variant: str, stdio: bool, tmp_path: Path) -> None:
    scene = Scene(tmp_path, 4000, 4001, 0, Era.STATELESS, upstreams=3, stdio=stdio, variant=variant)
    PROXIES[MCPROXY].start(scene)
    settings = load_configuration(tmp_path / "mcproxy.json").settings
    assert len(settings.upstreams) == 3
    assert settings.proxy.port == 4000


def test_a_variant_changes_only_what_it_names() -> None:
    plain = {"proxy": {"port": 1, "limits": {"a": 1}}, "mcpServers": {}}
    assert merged(plain, {"proxy": {"limits": {"b": 2}}, "access": {"c": 3}}) == {
        "proxy": {"port": 1, "limits": {"a": 1, "b": 2}},
        "mcpServers": {},
        "access": {"c": 3},
    }


def test_an_upstream_of_one_era_is_configured_as_that(tmp_path: Path) -> None:
    eras = [configuration(Scene(tmp_path, 1, 2, 0, era))["mcpServers"]["u0"]["era"] for era in Era]
    assert eras == ["legacy", "modern"]


def test_names_of_workloads_are_their_own_and_their_proxies_known() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    for workload in WORKLOADS:
        assert set(workload.proxies) <= {*PROXIES, "direct"}
        assert workload.variant in VARIANTS


def test_the_gateway_is_asked_by_the_names_that_it_exposes() -> None:
    call, read_ = (next(each for each in WORKLOADS if each.name.startswith(name)) for name in ("tools-call", "read"))
    assert ask_of(call, PROXIES[MCPROXY], 3).params["name"] == "u3__echo"
    assert ask_of(call, None, 0).params["name"] == "echo"
    assert ask_of(read_, PROXIES[MCPROXY], 0).params["uri"].startswith("u0+bench://fresh/")
