"""Ages as people write them: ``90m``, ``24h``, ``30d``."""

import re
from datetime import timedelta

AGE_WANTED = "a number and s, m, h or d, such as 24h"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_SECONDS = 10**10


def parse_age(text: str) -> timedelta | None:
    """Return an age, some 300 years at most; None when the text is none."""
    matched = re.fullmatch(r"(\d+)([smhd])", text, re.ASCII)
    if matched is None:
        return None
    return timedelta(seconds=min(int(matched[1]) * _SECONDS[matched[2]], _LONGEST_SECONDS))
