"""Writes into docs/estimate.md what every `tsr estimate` that it names prints.

python -m benchmarks.estimate_page
"""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.estimate import estimate

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "estimate.md"
BLOCK = "<!-- made by tsr estimate {flags} -->\n{page}<!-- end -->"


def made(flags: str) -> str:
    """What `tsr estimate` prints."""
    out = StringIO()
    with redirect_stdout(out):
        estimate(flags.split(), parsed_run)
    return out.getvalue()


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for flags in re.findall(r"<!-- made by tsr estimate (.+) -->", text):
        block = re.escape(BLOCK).replace(r"\{flags\}", re.escape(flags)).replace(r"\{page\}", r".*?")
        new = BLOCK.format(flags=flags, page=made(flags))
        text = re.sub(block, new.replace("\\", r"\\"), text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
