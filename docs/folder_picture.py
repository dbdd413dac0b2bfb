"""The picture of a folder's result: the most confident images of some known and novel classes.

openldn train FOLDER --out RUN && python docs/folder_picture.py RUN docs/pets.jpg
"""

import csv
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from openldn.files import read_json

TILE, COLUMNS, ROWS, GAP, MARGIN = 56, 11, (4, 8), 3, 170


def main(run: Path, out: Path) -> None:
    folder = Path(read_json(run / "config.json", "")["data"]["path"])
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as f:
        rows = sorted(csv.DictReader(f), key=lambda row: -float(row["confidence"]))
    names = read_json(run / "classes.json", "")
    chosen = [name for kind, n in zip(("known", "novel"), ROWS, strict=True) for name in names[kind][:n]]
    cell = TILE + GAP
    sheet = Image.new("RGB", (MARGIN + COLUMNS * cell, len(chosen) * cell + 3 * GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for k, name in enumerate(chosen):
        top = k * cell + (3 * GAP if k >= ROWS[0] else 0)
        draw.text((6, top + TILE // 2 - 8), str(name), "black", font)
        best = [row["image"] for row in rows if row["label"] == str(name)][:COLUMNS]
        for j, image in enumerate(best):
            with Image.open(folder / image) as photograph:
                tile = ImageOps.fit(photograph.convert("RGB"), (TILE, TILE))
            sheet.paste(tile, (MARGIN + j * cell, top))
    sheet.save(out, quality=82, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
