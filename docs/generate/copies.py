"""Copy into the site what the repository keeps elsewhere: model cards with their pictures, the changelog."""

import re
from pathlib import Path

import mkdocs_gen_files

_ROOT = Path(__file__).resolve().parents[2]
_MODELS = _ROOT / "models" / "zoo" / "trained"

for card in sorted(_MODELS.glob("*/card.md")):
    folder = f"reference/models/{card.parent.name}"
    with mkdocs_gen_files.open(f"{folder}.md", "w") as page:
        # The page lies beside its folder of pictures.
        page.write(re.sub(r"\]\((\w+\.png)\)", rf"]({card.parent.name}/\1)", card.read_text()))
    for picture in card.parent.glob("*.png"):
        with mkdocs_gen_files.open(f"{folder}/{picture.name}", "wb") as copy:
            copy.write(picture.read_bytes())

with mkdocs_gen_files.open("changelog.md", "w") as page:
    page.write((_ROOT / "CHANGELOG.md").read_text().replace("](docs/", "]("))
with mkdocs_gen_files.open("contributing.md", "w") as page:
    page.write((_ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "]("))
