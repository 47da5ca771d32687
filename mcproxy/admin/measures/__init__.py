"""What operators see as figures: collectors of metrics, the lag of the event loop, the last hour, and its charts."""
