"""How requests leave: decisions, certificates, and real proxies."""
