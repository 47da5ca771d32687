"""The audit: the records of calls, logins and operators' actions, how they are written, and what they sum up to."""
