"""`python -m benchmarks.results`: the tables of docs/results.md and of the pages in docs/results, from the packed
studies there, and the pictures of these and of the README."""

from benchmarks.results.front import front_picture
from benchmarks.results.page import PAGE, ROOT, load_pages, load_studies, tables, with_tables
from benchmarks.results.quickstart_llm import quickstart_picture
from benchmarks.results.reports import write_reports
from tsr_lightning.studies.report.build import build_report


def main() -> None:
    studies = load_studies()
    built = {name: build_report([study]) for name, study in studies.items()}
    texts = with_tables(load_pages(), tables(studies, built))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        print(path)
    print("\n".join(map(str, write_reports(ROOT, built, list(texts.values())))))
    for name, picture in (("search_wins", front_picture), ("quickstart_llm", quickstart_picture)):
        path = PAGE.with_name(f"{name}.png")
        path.write_bytes(picture(studies))
        print(path)


if __name__ == "__main__":
    main()
