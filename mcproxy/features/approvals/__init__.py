"""Approvals: a person approves calls before they are sent. Either the caller is asked, or an operator decides."""
