"""The vocabulary of the gateway: the values that travel through it, and the protocols that its parts implement.

The core speaks the newest revision's model: a `Call` goes in, its `Outcome` comes back, and the `Client` is the way
back to the caller while the call lasts. `Listener` and `UpstreamEvent` are for what happens between calls. Values and
protocols alone: nothing here acts.
"""
