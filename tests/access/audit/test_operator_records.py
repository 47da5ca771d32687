"""What operators did, as the audit has it."""

from __future__ import annotations

import json

from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.access.audit.record_lines import Lines


def test_the_audit_says_which_operator_did_what_and_no_name_begins_a_line_of_its_own() -> None:
    line = Lines([]).line(OperatorRecord(0.5, "ops\n{}", "restart", "git"))
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert found == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "event": "operator restart",
        "principal": found["principal"],
        "subject": "git",
    }
    assert found["principal"].startswith("ops")
