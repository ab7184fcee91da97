"""Writes the pages of `tsr estimate` for every file of configs/paper/ into docs/estimate.md.

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
BLOCK = "<!-- made by tsr estimate --config {name} -->\n{page}<!-- end -->"


def made(name: str) -> str:
    """What `tsr estimate --config name` prints."""
    out = StringIO()
    with redirect_stdout(out):
        estimate(["--config", name], parsed_run)
    return out.getvalue()


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"<!-- made by tsr estimate --config (\S+) -->", text):
        block = re.escape(BLOCK).replace(r"\{name\}", re.escape(name)).replace(r"\{page\}", r".*?")
        new = BLOCK.format(name=name, page=made(name))
        text = re.sub(block, lambda _, new=new: new, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
