"""A sample whose outside world takes money: a payment provider that misbehaves when asked to."""
