"""The documentation as a site: the README and docs/ as they stand, and what docs/pages.py makes of docstrings.

`make docs` builds it, and fails at a broken link, anchor or reference.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import pages  # noqa: E402

project = html_title = "TSR Lightning"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
root_doc = "README"
include_patterns = ["README.md", "docs/**", "tsr_lightning/policy/embedded/**"]
exclude_patterns = [
    ".*",
    "build",
    "models",
    "runs",
    pages.PRESETS,
    "docs/results/*/*",  # written by tsr report
]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
highlight_language = "none"
smartquotes_action = "D"  # dashes alone
default_role = "code"  # of single backticks in docstrings
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # Lightning's and gymnasium's are theirs
python_maximum_signature_line_length = 88

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_static_path = html_css_files = ["site.css"]

# The order of the site, by the caption of each part. A page that is nowhere fails the build.
PARTS = {
    "Getting started": (
        "Install and first run <self>",
        "/docs/command_line",
        "/docs/real_models",
        "/docs/run_folder",
        "/docs/episodes",
        "/docs/diagnostics",
    ),
    "Concepts and parts": (
        "/docs/architecture",
        "/docs/search",
        "/docs/objectives/README",
        "/docs/reference/tasks/README",
        "/docs/reference/callbacks/README",
        "Your own of each </docs/extend>",
    ),
    "From laptop to cluster": (
        "/docs/estimate",
        "/docs/asynchronous",
        "/docs/scaling",
        "/docs/ray",
        "/docs/vllm",
        "/docs/model_types",
    ),
    "Results": (
        "/docs/results",
        "/docs/results/comparisons",
        "/docs/results/tuning",
        "/docs/results/README",
        "/docs/studies",
        "/docs/guide",
        "/docs/paper",
        "/docs/gradients",
    ),
    "Reference": ("/docs/reference/api/README",),
    "Laboratory book": (
        "/docs/log",
        "/docs/performance",
        "/docs/growth",
        "/docs/records/objectives_study",
        "/docs/records/stability",
        "/docs/reference/policies",
        "/docs/release",
    ),
}


def toctree(entries: Sequence[str], caption: str = "") -> str:
    """Sphinx's table of contents, which puts pages into the navigation and shows nothing on its own page."""
    options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["\n\n```{toctree}", *options, "", *entries, "```\n"])


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Appends to a page what only the site has: the navigation, and text from docstrings."""
    source[0] = pages.linked(source[0])
    if name == root_doc:
        source[0] += "".join(toctree(entries, caption) for caption, entries in PARTS.items())
    elif name in made.below:
        source[0] += toctree([f"/{page}" for page in made.below[name]])
    source[0] += made.appended.get(name, "")


def linked_documents(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """A page that a docstring names is a link to it, which fails where there is none."""
    lines[:] = [re.sub(r"docs/(?!examples)([\w/]+)\.md", pages.role, line) for line in lines]


class LinkedNames(SphinxPostTransform):
    """A public name in code font is a link to where it is explained."""

    default_priority = 5

    def run(self) -> None:
        known, here = self.env.domains.python_domain.objects, self.env.docname
        for literal in list(self.document.findall(nodes.literal)):
            entry = known.get(pages.NAMES.get(literal.astext(), ""))
            if entry is not None and entry.docname != here and not isinstance(literal.parent, nodes.reference):
                copy = literal.deepcopy()
                literal.replace_self(make_refnode(self.app.builder, here, entry.docname, entry.node_id, copy))


class WrappedCommands(SphinxPostTransform):
    """A block of commands has a class of its own, under which its lines are wrapped."""

    default_priority = 5

    def run(self) -> None:
        for block in self.document.findall(nodes.literal_block):
            if re.match(r"(tsr|tsr-ray|make|pip|python|torchrun|export) ", block.astext()):
                block["classes"].append("commands")


def front_page(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", linked_documents)
    app.connect("build-finished", front_page)
    app.add_post_transform(LinkedNames)
    app.add_post_transform(WrappedCommands)


made = pages.make()
