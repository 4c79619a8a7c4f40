"""Sample fleets."""
