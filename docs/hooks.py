"""Adapts the documents, which GitHub shows unchanged, to the documentation site."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = re.compile(r"<!-- README\.md.*-->")
RELATIVE = re.compile(r"(?<!!)\[([^][]+)\]\((?!https?:|#)([^)\s]+)\)")
FIGURES = "figures"


def on_files(files, config):
    """Adds the figures, which are outside of docs/, to the site."""
    for picture in sorted((ROOT / FIGURES).iterdir()):
        name, folders = f"{FIGURES}/{picture.name}", (str(ROOT), config.site_dir)
        files.append(File(name, *folders, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page, config, **_) -> str:
    """Inserts README.md into the first page, and adapts links to files outside of docs/."""
    if README.search(markdown):
        readme = (ROOT / "README.md").read_text()
        readme = RELATIVE.sub(lambda match: link(*match.groups(), config.repo_url), readme)
        return README.sub(lambda _: readme, markdown)
    markdown = markdown.replace(f"](../{FIGURES}/", f"]({FIGURES}/")
    return RELATIVE.sub(
        lambda match: (
            link(match[1], match[2].removeprefix("../"), config.repo_url)
            if match[2].startswith("../")
            else match[0]
        ),
        markdown,
    )


def link(text: str, target: str, repo_url: str | None) -> str:
    """Makes a link to a file, given its path from the root of the repository.

    Files outside of docs/ are named without a link if the repository has no URL.
    """
    path, _, anchor = target.partition("#")
    anchor = anchor and f"#{anchor}"
    if path == "README.md":
        return f"[{text}](index.md{anchor})"
    if path.startswith("docs/"):
        return f"[{text}]({path.removeprefix('docs/')}{anchor})"
    if repo_url:
        return f"[{text}]({repo_url}/blob/main/{target})"
    return text if text == path else f"{text} (`{path}`)"
