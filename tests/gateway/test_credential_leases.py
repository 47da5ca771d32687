"""The twin of `mcproxy.gateway.credential_leases`."""

from __future__ import annotations

import pytest

from mcproxy.call.errors import McpError
from mcproxy.gateway.credential_leases import CredentialLeases


def test_r39_credentials_lapse_once_they_were_unused_for_long() -> None:
    leases = CredentialLeases(idle=10, most_of_principal=5)
    with leases.used("k", "ann", now=0):
        pass
    assert leases.lapsed([], now=10) == []
    assert leases.lapsed([], now=11) == ["k"]
    assert leases.lapsed([], now=99) == []


def test_credentials_do_not_lapse_during_a_call_however_long() -> None:
    leases = CredentialLeases(idle=10, most_of_principal=5)
    with leases.used("k", "ann", now=0):
        assert leases.lapsed([], now=1000) == []


def test_credentials_do_not_lapse_while_a_client_listens() -> None:
    leases = CredentialLeases(idle=10, most_of_principal=5)
    with leases.used("k", "ann", now=0):
        pass
    assert leases.lapsed(["k"], now=1000) == []
    assert leases.lapsed([], now=1011) == ["k"]


def test_one_principal_cannot_take_the_room_of_others() -> None:
    leases = CredentialLeases(idle=10, most_of_principal=1)
    with leases.used("k", "ann", now=0), leases.used("k", "ann", now=0):
        with pytest.raises(McpError, match="max_credentials_per_principal"), leases.used("l", "ann", now=0):
            pass
        with leases.used("m", "bob", now=0):
            pass
    assert leases.lapsed([], now=11) == ["k", "m"]
    with leases.used("l", "ann", now=12):
        pass


def test_only_the_first_call_is_new_until_the_settings_change() -> None:
    leases = CredentialLeases(idle=10, most_of_principal=1)
    for expected in (True, False):
        with leases.used("k", "ann", now=0) as is_new:
            assert is_new is expected
    leases.reconfigure(idle=10, most_of_principal=1)
    with leases.used("k", "ann", now=0) as is_new:
        assert is_new


def test_a_listener_has_a_lease_that_lapses_as_well() -> None:
    leases = CredentialLeases(idle=10, most_of_principal=1)
    leases.keep("k", "ann", now=0)
    assert leases.lapsed(["k"], now=50) == []
    assert leases.lapsed([], now=61) == ["k"]
