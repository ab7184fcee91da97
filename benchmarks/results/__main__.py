"""`python -m benchmarks.results`: writes the tables of docs/results.md from the files of the studies beside it."""

from benchmarks.results.page import PAGE, tables, with_tables


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(text, tables(PAGE.with_suffix(""))), encoding="utf-8")


if __name__ == "__main__":
    main()
