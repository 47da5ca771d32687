"""JSON itself, whatever it says: how much and how deep it may be, what comes twice in it, and what no parser reads."""
