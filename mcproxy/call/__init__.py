"""The vocabulary of the gateway: what travels through it, and the few shapes that its parts show each other.

The core speaks the newest revision's model: a `Call` goes in, its `Outcome` comes back, and the `Client` is the way
back to the caller while the call lasts. `Listener` and `UpstreamEvent` are for what happens between calls. Values and
protocols alone: nothing here acts.
"""
