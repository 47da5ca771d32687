"""Resource subscriptions: which client watches which resource, and what each upstream is asked to report."""
