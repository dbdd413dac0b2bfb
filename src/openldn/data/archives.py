"""What publishers offer for download, and how it is unpacked: whole or not at all."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A file as its publisher offers it."""

    file: str
    url: str | None  # None where a login or a form stands before it
    checksum: str | None  # "md5:..." or "sha256:..."
    size: int  # bytes, to say how long it will take
