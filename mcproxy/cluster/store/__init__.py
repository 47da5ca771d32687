"""What replicas share: one protocol (`protocol`), and Redis, which speaks it (`redis_store`)."""
