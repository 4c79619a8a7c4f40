"""Print the command line of README.md that follows the comment ``<!-- command: NAME -->``."""

import re
import sys
from pathlib import Path

readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
found = re.search(
    rf"<!-- command: {re.escape(sys.argv[1])} -->\s*```(?:sh|bash)\n(.+?)\n```", readme, re.DOTALL
)
if found is None:
    sys.exit(f"README.md has no command {sys.argv[1]!r}")
sys.stdout.write(found[1] + "\n")
