"""The twin of `mcproxy.gateway.listings.exposures`: what is kept, what is prepared, and what others do meanwhile."""

from __future__ import annotations

import sys

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.concurrency.turns import at_once
from mcproxy.gateway.listings.exposures import Showing
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.gateway.listings.state import Catalogue, CatalogueRules, rules_of
from mcproxy.protocol.methods import Kind
from tests.catalog.views.samples import listing
from tests.fakes.upstream import settings_of, tool

LINK = LinkKey("up", None)
TOOLS = ListKey(LINK, Kind.TOOLS)
ALL, ERA = Showing(AGGREGATE), Showing(AGGREGATE, handshake=True)
READER = Showing(AGGREGATE, frozenset({"reader"}))
POLICY = {"roles": {"reader": {"allow": [{"tools": ["a*"]}]}}}
LOCKED = {"pins": {"mode": "enforce"}}


def rules(access: object = None, **options: object) -> CatalogueRules:
    return rules_of(settings_of({"up": options}, access))


def knowing(found: Listing, access: object = None) -> Catalogue:
    catalogue = Catalogue(rules(access))
    catalogue.known.replace(LINK, Kind.TOOLS, found)
    return catalogue


def keys(catalogue: Catalogue, showing: Showing = ALL) -> list[str]:
    return [shown.own for shown in catalogue.exposures.of(TOOLS, showing).shown]


def test_an_exposure_is_made_once_for_all_who_are_shown_the_same() -> None:
    catalogue = knowing(listing(Kind.TOOLS, tool("a")))
    assert catalogue.exposures.of(TOOLS, ALL) is catalogue.exposures.of(TOOLS, ALL)


def test_while_a_list_is_prepared_the_known_one_is_shown_and_afterwards_all_of_the_other() -> None:
    before, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "ab")
    catalogue = knowing(before, {"policy": POLICY})
    showings = [ALL, ERA, READER]
    shown = {showing: keys(catalogue, showing) for showing in showings}
    turns = 0
    for _ in catalogue.exposures.preparing(TOOLS, after, ()):
        turns += 1
        assert {showing: keys(catalogue, showing) for showing in showings} == shown
    assert turns > 0
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    for showing in showings:
        assert keys(catalogue, showing) == keys(knowing(after, {"policy": POLICY}), showing)
        assert keys(catalogue, showing) != shown[showing]


def test_r78_nothing_is_left_to_do_once_a_prepared_list_is_known() -> None:
    before, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "ab")
    catalogue = knowing(before, {"policy": POLICY})
    keys(catalogue, READER)
    at_once(catalogue.exposures.preparing(TOOLS, after, (ERA,)))
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    for showing in (ALL, ERA, READER):
        assert sum(1 for _ in catalogue.exposures.making(TOOLS, showing)) == 0


def test_r78_what_was_prepared_is_kept_while_other_lists_of_the_link_change_or_a_prepared_one_is_not_taken() -> None:
    before, other, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "abc")
    catalogue = knowing(before, {"policy": POLICY})
    showings = [ALL, ERA, READER]
    for showing in showings:
        keys(catalogue, showing)
    for found in (other, after):
        at_once(catalogue.exposures.preparing(TOOLS, found))
        catalogue.known.replace(LINK, Kind.RESOURCES, listing(Kind.RESOURCES))
        for showing in showings:
            assert sum(1 for _ in catalogue.exposures.making(TOOLS, showing)) == 0
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    for showing in showings:
        assert sum(1 for _ in catalogue.exposures.making(TOOLS, showing)) == 0


def test_nothing_is_kept_of_a_list_once_another_took_its_place_or_none() -> None:
    before, after = (listing(Kind.TOOLS, tool(name)) for name in "ab")
    held = sys.getrefcount(before)
    catalogue = knowing(before, {"policy": POLICY})
    for showing in (ALL, ERA, READER):
        keys(catalogue, showing)
    at_once(catalogue.exposures.preparing(TOOLS, after))
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    assert sys.getrefcount(before) == held
    catalogue.known.empty(LINK)
    assert sys.getrefcount(after) == held


def test_other_settings_hold_although_a_list_was_being_prepared_by_the_earlier_ones() -> None:
    before, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "ab")
    catalogue = knowing(before)
    assert keys(catalogue)
    preparing = catalogue.exposures.preparing(TOOLS, after, (ALL,))
    next(preparing)
    catalogue.reconfigure(rules(tools={"exclude": ["b1*"]}))
    at_once(preparing)
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    assert "b2" in keys(catalogue)
    assert "b1" not in keys(catalogue)


def test_r45_other_pins_hold_although_a_list_was_being_vetted_by_the_earlier_ones() -> None:
    before, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "ab")
    catalogue = knowing(before)
    assert keys(catalogue)
    preparing = catalogue.exposures.preparing(TOOLS, after, (ALL,))
    next(preparing)
    catalogue.reconfigure(rules(LOCKED))
    at_once(preparing)
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    assert keys(catalogue) == []


def test_an_upstream_may_go_while_its_list_is_prepared() -> None:
    before, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "ab")
    catalogue = knowing(before)
    assert keys(catalogue)
    preparing = catalogue.exposures.preparing(TOOLS, after, (ALL, ERA))
    next(preparing)
    catalogue.known.retire(LINK)
    catalogue.reconfigure(rules_of(settings_of({"other": {}})))
    at_once(preparing)
    assert catalogue.known.listing(LINK, Kind.TOOLS) is None


def test_an_upstream_may_go_before_the_first_step_on_its_list() -> None:
    catalogue = knowing(listing(Kind.TOOLS, tool("a")))
    after = listing(Kind.TOOLS, tool("b"))
    held = sys.getrefcount(after)
    preparing = catalogue.exposures.preparing(TOOLS, after, (ALL, ERA))
    catalogue.known.retire(LINK)
    catalogue.reconfigure(rules_of(settings_of({"other": {}})))
    at_once(preparing)
    del preparing
    assert sys.getrefcount(after) == held


def test_nothing_is_kept_of_a_list_whose_link_goes_while_it_is_prepared() -> None:
    catalogue = knowing(listing(Kind.TOOLS, tool("a")))
    after = listing(Kind.TOOLS, *(tool(f"b{number}") for number in range(300)))
    held = sys.getrefcount(after)
    preparing = catalogue.exposures.preparing(TOOLS, after, (ALL, ERA))
    next(preparing)
    catalogue.known.retire(LINK)
    at_once(preparing)
    del preparing
    assert sys.getrefcount(after) == held


def test_only_so_many_exposures_of_a_list_are_kept_and_the_least_recently_used_goes() -> None:
    roles = {name: {"allow": [{"tools": ["a*"]}]} for name in "xyz"}
    catalogue = knowing(listing(Kind.TOOLS, tool("a")), {"policy": {"roles": roles, "max_views": 3}})
    first, second = (catalogue.exposures.of(TOOLS, showing) for showing in (ALL, ERA))
    for name in roles:
        catalogue.exposures.of(TOOLS, Showing(AGGREGATE, frozenset({name})))
        assert catalogue.exposures.of(TOOLS, ALL) is first
    assert catalogue.exposures.of(TOOLS, ERA) is not second


def test_r37_what_several_callers_need_is_worked_out_once() -> None:
    catalogue = knowing(listing(Kind.TOOLS, *(tool(f"a{number}") for number in range(300))))
    alone = sum(1 for _ in knowing(catalogue.known.snapshots[LINK].lists[Kind.TOOLS]).exposures.making(TOOLS, ALL))
    several = [catalogue.exposures.making(TOOLS, ALL) for _ in range(3)]
    steps = 0
    while several:
        for each in list(several):
            if next(each, several) is several:
                several.remove(each)
            else:
                steps += 1
    assert steps == alone


def test_what_nobody_needs_any_more_is_worked_out_for_whoever_needs_it_next() -> None:
    catalogue = knowing(listing(Kind.TOOLS, *(tool(f"a{number}") for number in range(300))))
    given_up = catalogue.exposures.making(TOOLS, ALL)
    next(given_up)
    given_up.close()
    assert len(keys(catalogue)) == 300


def test_lists_that_follow_each_other_may_be_worked_out_beside_each_other() -> None:
    before, after = (listing(Kind.TOOLS, *(tool(f"{name}{number}") for number in range(300))) for name in "ab")
    catalogue = knowing(before)
    beside = [catalogue.exposures.making(TOOLS, ALL), catalogue.exposures.preparing(TOOLS, after, (ALL,))]
    while beside:
        beside = [each for each in beside if next(each, beside) is not beside]
    assert keys(catalogue)[0] == "a0"
    catalogue.known.replace(LINK, Kind.TOOLS, after)
    assert keys(catalogue)[0] == "b0"
