"""`python -m tests.docs`: writes the generated parts of the documents anew, and says which pages changed."""

from __future__ import annotations

from tests.docs.diagrams import ROOT
from tests.docs.generated import pages, rendered

if __name__ == "__main__":
    for page in pages():
        before = page.read_text()
        after = rendered(before)
        if after != before:
            page.write_text(after)
            print(f"wrote {page.relative_to(ROOT)}")
