"""`python -m benchmarks.results`: the tables of docs/results.md from the packed studies beside it, their pages, and the
pictures of the README."""

from benchmarks.results.front import front_picture
from benchmarks.results.page import PAGE, load_studies, tables, with_tables
from benchmarks.results.quickstart_llm import quickstart_picture
from benchmarks.results.reports import write_reports


def main() -> None:
    root = PAGE.with_suffix("")
    studies = load_studies(root)
    text = with_tables(PAGE.read_text(encoding="utf-8"), tables(root, studies))
    PAGE.write_text(text, encoding="utf-8")
    print("\n".join(map(str, write_reports(root, studies, text))))
    for name, picture in (("search_wins", front_picture), ("quickstart_llm", quickstart_picture)):
        path = PAGE.with_name(f"{name}.png")
        path.write_bytes(picture(studies))
        print(path)


if __name__ == "__main__":
    main()
