"""Times in ISO 8601, as records and documents have them."""

import re
from datetime import datetime

_FRACTION = re.compile(r"(\.\d{1,6})\d*")


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601, whose fraction of a second may have any number of digits.

    Python 3.10 by itself reads neither Z nor fractions of other than 3 or 6 digits.

    Raises:
        ValueError: the text is no time.
    """
    text = _FRACTION.sub(lambda found: f"{found[1]:0<7}", text)
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
