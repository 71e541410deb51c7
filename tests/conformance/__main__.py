"""Write docs/conformance.md: `python -m tests.conformance`."""

from tests.conformance.page import PAGE, data, page, proofs

if __name__ == "__main__":
    PAGE.write_text(page(data(), proofs()), encoding="utf-8")
