"""How it runs: plan, runner, limits, leases, and the ports they need."""
