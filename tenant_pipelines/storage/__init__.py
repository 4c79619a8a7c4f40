"""Where data lives: artifacts, SQL source, SQL warehouse and its ledger."""
