"""What one client has still to be told."""

from __future__ import annotations

from mcproxy.call.clients import ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.downstream.io.pending_changes import BATCH, PendingChanges, as_notification, encoded
from mcproxy.protocol.jsonrpc import Notification, encode, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings


def taken(changes: PendingChanges) -> list[Notification]:
    return [as_notification(change) for change in changes.take()]


def everything(changes: PendingChanges) -> list[Notification]:
    all_of_them: list[Notification] = []
    while len(changes):
        some = taken(changes)
        assert 1 <= len(some) <= BATCH
        all_of_them += some
    return all_of_them


def test_r23_storms_coalesce_and_lose_nothing() -> None:
    changes = PendingChanges(LimitSettings())
    for round in range(3):
        for number in range(200):
            changes.note(ResourceUpdated(f"a:{number}", {"round": raw(round)}))
        changes.note(ListChanged(Kind.TOOLS))
    told = everything(changes)
    assert len(told) == 201
    assert all(notification.params.get("round", raw(2)) == raw(2) for notification in told)


def test_r23_of_a_task_the_latest_state_is_told_and_what_says_much_is_left_to_be_asked_for() -> None:
    changes = PendingChanges(LimitSettings())
    for status in ("working", "completed"):
        changes.note(TaskChanged("1", "notifications/tasks/status", {"status": raw(status)}))
    changes.note(TaskChanged("2", "notifications/tasks/status", {"statusMessage": raw("x" * 100_000)}))
    assert taken(changes) == [Notification("notifications/tasks/status", {"status": raw("completed")})]
    assert len(changes) == 0


def test_notices_keep_their_order_and_the_oldest_give_way() -> None:
    changes = PendingChanges(LimitSettings(max_queued_messages=3))
    for number in range(5):
        changes.note(Notice("notifications/message", {"n": raw(number)}))
    assert [notification.params["n"] for notification in everything(changes)] == [raw(2), raw(3), raw(4)]


def test_r23_notices_are_bounded_in_bytes_and_the_oldest_give_way() -> None:
    changes = PendingChanges(LimitSettings())
    for number in range(1000):
        changes.note(Notice("notifications/message", {"n": raw(number), "data": raw("x" * 100_000)}))
    told = [notification.params for notification in everything(changes)]
    assert told[-1]["n"] == raw(999)
    assert 3_000_000 < sum(len(params["data"]) for params in told) <= 4 * 1024 * 1024


def test_a_notice_of_any_size_reaches_its_listeners() -> None:
    changes = PendingChanges(LimitSettings())
    changes.note(Notice("notifications/message", {"data": raw("x" * 5_000_000)}))
    (notification,) = taken(changes)
    assert len(notification.params["data"]) > 5_000_000


def test_r23_an_update_that_says_much_is_told_by_its_uri_alone() -> None:
    changes = PendingChanges(LimitSettings())
    changes.note(ResourceUpdated("a:b", {"uri": raw("a:b"), "_meta": raw("x" * 10_000)}))
    (updated,) = taken(changes)
    assert updated.params == {"uri": raw("a:b")}


def test_r23_changes_are_bounded() -> None:
    changes = PendingChanges(LimitSettings(max_subscriptions_per_session=10))
    for number in range(1000):
        changes.note(ResourceUpdated(f"a:{number}"))
    assert everything(changes)[-1].params["uri"] == raw("a:999")
    assert len(changes) == 0


def test_an_update_names_the_hearers_own_uri() -> None:
    changes = PendingChanges(LimitSettings())
    changes.note(ResourceUpdated("gh+a:b", {"uri": raw("a:b"), "title": raw("t")}))
    (updated,) = taken(changes)
    assert updated.params == {"uri": raw("gh+a:b"), "title": raw("t")}


def test_an_update_is_encoded_once_for_all_who_use_its_name() -> None:
    update = ResourceUpdated("gh+a:b", {"uri": raw("a:b"), "title": raw("t")})
    one, other = PendingChanges(LimitSettings()), PendingChanges(LimitSettings())
    one.note(update)
    other.note(update)
    (told,) = one.take()
    assert encoded(told) is encoded(*other.take())
    assert encoded(told) == encode(as_notification(update))


def test_resources_and_their_templates_are_told_of_once() -> None:
    changes = PendingChanges(LimitSettings())
    changes.note(ListChanged(Kind.TEMPLATES))
    changes.note(ListChanged(Kind.RESOURCES))
    assert [notification.method for notification in everything(changes)] == ["notifications/resources/list_changed"]
