"""What the table of methods and its constants say beyond their rows."""

from __future__ import annotations

from mcproxy.protocol.methods import LOG_LEVELS, is_audible


def test_a_log_message_is_audible_at_its_level_or_a_less_severe_one() -> None:
    assert [level for level in LOG_LEVELS if is_audible(level, "warning")] == list(LOG_LEVELS[3:])
    assert not any(is_audible(level, None) for level in LOG_LEVELS)
    assert not is_audible("made up", "debug")
