"""Draws docs/story.png: the page that `slotproof explore --html` writes, at its last call, in Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from slotproof.proofs.cli.main import run

PICTURE = Path(__file__).resolve().with_name("story.png")
RULE, LAST_CALL = "count_idle_hits", 4
WIDTH, HEIGHT = 1400, 920


def main() -> None:
    """Write the picture. Exits with a line on standard error if there is no Chromium or no story."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("docs/draw_story.py: needs Chromium (apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        page = Path("story.html").absolute()
        if run(["explore", "--without", RULE, "--html", page.name]) != 0:
            sys.exit(f"docs/draw_story.py: no story without {RULE}")
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}",
        ]
        shot = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}", f"{page.as_uri()}#{LAST_CALL}"]
        subprocess.run([chromium, *flags, *shot], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
