"""Renders a report as one HTML page without other files, and as Markdown beside its pictures."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

from tsr_lightning.studies.report.tables import Table

NOTES = (
    "Brackets are 95% intervals of the mean over seeds and instances like these, by the crossed random-effects model "
    "with Satterthwaite's degrees of freedom; differences are paired by seed and instance. With one seed, or "
    "without any spread, they are those of one run, over instances alone (Wilson's of a rate, Agresti and Min's of a "
    "difference), and say nothing of another seed. Each is of one comparison, and covers less than 95% where seeds "
    "differ much or success is rare (88% at two seeds, 93% at three, 85% at five with rare success, 77 to 87% where "
    "one of a few seeds is an outlier).",
    "Costs are those of training: tokens and environment steps of rollouts, and seconds without evaluation. At a "
    "budget, success is interpolated between the evaluations before and after it: at the least that any run of the "
    "set spent, and against the baseline at the least that any run of the two spent. Differences at equal seconds are "
    "left out where threads, runs at once or versions differ; on other days a machine may be slower, which no result "
    "records.",
    "What a threshold took is the median of the seeds, where a seed that does not reach it counts as endless (–).",
    "Pictures: mean of the seeds, whose number is in brackets, and their range; or, of arms that were evaluated at the "
    "start and the end alone, the gain and its interval.",
)
_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ report.title }}</title><style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 1.5em; font-size: 13px }
td, th { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; font-variant-numeric: tabular-nums }
tbody tr:hover { background: #f4f6f8 }
img { max-width: 100% } .note { color: #555; font-size: 13px } .wide { overflow-x: auto }
</style></head><body>
<h1>{{ report.title }}</h1>
{% for line in report.verdict %}<p>{{ line }}</p>
{% endfor %}
{% for section in report.sections %}<h2>{{ section.title }}</h2>
{% for picture in section.pictures %}<img alt="{{ picture }}" src="data:image/png;base64,{{ images[picture] }}">
{% endfor %}
{% for table in section.tables %}<h3>{{ table.title }}</h3>
<div class="wide"><table><thead><tr>{% for name in table.header %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}{% endfor %}
{% for note in notes %}<p class="note">{{ note }}</p>
{% endfor %}</body></html>
"""


@dataclass(frozen=True)
class Section:
    """A study's part of a report.

    Args:
        title: its heading.
        pictures: names of PNG files.
        tables: below them.
    """

    title: str
    pictures: tuple[str, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Report:
    """The contents of a page.

    Args:
        title: its heading.
        verdict: its first lines.
        sections: in their order.
    """

    title: str
    verdict: tuple[str, ...]
    sections: tuple[Section, ...]


def html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Returns the page, with the pictures inlined.

    Args:
        report: its contents.
        pictures: PNGs by name.
    """
    images = {name: base64.b64encode(png).decode("ascii") for name, png in pictures.items()}
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_HTML)
    return template.render(report=report, images=images, notes=NOTES)


def markdown(report: Report) -> str:
    """Returns a fragment without a first heading, to be put into another page beside the pictures."""
    parts = [*report.verdict]
    for section in report.sections:
        parts += [f"## {section.title}", *(f"![{name}]({name})" for name in section.pictures)]
        for table in section.tables:
            parts += [f"**{table.title}**", _markdown_table(table)]
    return "\n\n".join([*parts, *NOTES]) + "\n"


def _markdown_table(table: Table) -> str:
    return "\n".join(map(_line, [table.header, ("---",) * len(table.header), *table.rows]))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
