"""Commands about access: keys of callers, logins at upstreams, the policy, pins, and why a call is let through."""
