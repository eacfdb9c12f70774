"""`make golden`: writes the answers of all transcripts again."""

from __future__ import annotations

from recruiter.embedded import EmbeddedServer
from tests.golden.transcript import FOLDER, SURFACES, answered
from tests.golden.world import names

if __name__ == "__main__":
    with EmbeddedServer() as server:
        for surface in SURFACES:
            path, target = FOLDER / f"{surface}.txt", server.uri.replace("/?", f"/golden_{surface}?")
            with names(target) as known:
                path.write_text(answered(path.read_text(), known, target, exact=surface == "errors"))
