"""The files of a public data set: found or fetched, read row by row, with the clips and pictures that rows name."""

import csv
import hashlib
import io
import json
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet

from data.files import RecordError, read_jsonl, write_whole
from data.media import BadPicture, read_picture

TABLES = (".parquet", ".jsonl", ".json", ".csv")
WRAPPERS = ("data", "rows", "records", "examples")  # keys under which a JSON object may hold its rows
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")


class Rejected(Exception):
    """A row that cannot be used: the reason under which it is counted, and a detail for the first one's message."""

    def __init__(self, reason, detail=""):
        super().__init__(reason)
        self.reason, self.detail = reason, f" ({str(detail)[:120]})" if detail else ""


class Counts:
    """Rows read and kept, records made of them, and why rows were rejected, with the first place of each reason."""

    def __init__(self):
        self.read, self.kept, self.records, self.reasons, self.first, self.unpaired = 0, 0, 0, Counter(), {}, 0

    def reject(self, reason, where):
        self.reasons[reason] += 1
        self.first.setdefault(reason, where)

    def report(self, title):
        """The counts as text."""
        lines = [f"{title}: read {self.read}, kept {self.kept}, rejected {self.reasons.total()}; {self.records} records"]
        lines += [f"  rejected {count} x {reason}; first: {self.first[reason]}" for reason, count in self.reasons.most_common()]
        lines += [f"  {self.unpaired} clips have no other clip of the same task with another score"] if self.unpaired else []
        return "\n".join(lines)


def locate(dataset, subset=None):
    """The local path of a data set, downloaded first where `dataset` is a hub id; raises RecordError where there is none."""
    path = Path(dataset)
    if path.exists():
        return path
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(dataset)):
        raise RecordError(f"{dataset}: no such file or folder, nor a hub id (owner/name)")
    from huggingface_hub import snapshot_download

    wanted = {"allow_patterns": [f"*{subset}*"]} if subset else {}
    return Path(snapshot_download(str(dataset), repo_type="dataset", **wanted))


def table_files(path, subset=None):
    """The files of a data set that hold rows; `subset` names a part of their paths (a config, a split, an ending).

    Raises RecordError where there is none, or where there are several kinds: which of them is meant is not guessed.
    """
    if path.is_file():
        return [path]
    found = [file for file in sorted(path.rglob("*")) if file.suffix in TABLES and (subset or "") in str(file.relative_to(path))]
    found = [file for file in found if not file.name.startswith((".", "dataset_info"))]  # a hub's own notes
    kinds = {file.suffix: file for file in found}
    if not found:
        raise RecordError(f"{path}: no {', '.join(TABLES)} here" + (f" with {subset!r} in its path" if subset else ""))
    if len(kinds) > 1:
        some = " and ".join(str(file.relative_to(path)) for file in kinds.values())
        raise RecordError(f"{path}: holds tables of several kinds ({some}); give one file, or --subset {min(kinds)}")
    return found


def read_rows(file):
    """Yield ("file:row", row); rows are counted from 1, of JSONL lines. Raises RecordError on a file that is cut or no table."""
    reader = {".parquet": parquet_rows, ".csv": csv_rows, ".json": json_rows}.get(file.suffix, read_jsonl)
    yield from ((f"{file}:{number}", row) for number, row in reader(file))


def parquet_rows(file):
    """(number, row) of a parquet file, 16 in memory."""
    try:
        batches = pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=16)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise RecordError(f"{file}: cannot be read as parquet ({error}); was the download cut?") from error


def csv_rows(file):
    """(number, row) of a CSV in UTF-8, with or without a byte-order mark; fields of any length."""
    csv.field_size_limit(2**31 - 1)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        table = csv.DictReader(stream)
        try:
            for number, row in enumerate(table, 1):
                if None in row:
                    raise RecordError(f"{file}:{table.line_num}: more fields than the header names; is a quotation mark missing?")
                yield number, row
        except UnicodeDecodeError as error:
            raise RecordError(f"{file}: after line {table.line_num}: not UTF-8 ({error}); save it as 'CSV UTF-8'") from error
        except csv.Error as error:
            raise RecordError(f"{file}:{table.line_num}: cannot be read as CSV ({error})") from error


def json_rows(file):
    """(number, row) of a .json file: an array, an object that holds one under a key of WRAPPERS, one object, or JSON lines."""
    text = file.read_bytes()
    try:
        whole = json.loads(text)  # bytes: a byte-order mark is none of the text
    except ValueError as error:
        if b"[" in text[:64].split(b"{")[0]:
            raise RecordError(f"{file}: not JSON ({error}); was the download cut?") from error
        return read_jsonl(file)
    keys = [key for key in WRAPPERS if isinstance(whole, dict) and isinstance(whole.get(key), list)]
    if not isinstance(whole, dict | list) or len(keys) > 1:
        raise RecordError(f"{file}: holds its rows neither as an array nor under one key (it has {keys}); give an array")
    return enumerate(whole[keys[0]] if keys else whole if isinstance(whole, list) else [whole], 1)


class Media:
    """Finds the clips and pictures that rows name; pictures that come as bytes are written to <out>/images.

    A name is looked up beside the row's file (`here`), then under `root`; a clip's at last by its base name anywhere
    under `root`, because the sets name paths of the machine that made them.
    """

    def __init__(self, root, out):
        self.root, self.out, self.here, self.clips, self.folders = Path(root), Path(out), Path(root), None, None

    def beside(self, name):
        """The file of this relative (or absolute) name, or None."""
        try:
            return next((file.absolute() for file in (self.here / name, self.root / name) if file.is_file()), None)
        except OSError:  # no name at all: a text of 300 letters
            return None

    def look(self):
        """Walk `root` once for base names of clips and names of folders."""
        self.clips, self.folders = {}, {}
        for folder, _, names in os.walk(self.root):
            self.folders[Path(folder).name] = Path(folder).absolute()
            for name in names:
                if name.lower().endswith(VIDEOS):
                    self.clips.setdefault(name, []).append((Path(folder) / name).absolute())

    def video(self, name):
        """The path of a clip; raises Rejected."""
        if not isinstance(name, str) or not name.strip():
            raise Rejected("names no video", repr(name))
        if found := self.beside(name):
            return str(found)
        if self.clips is None:
            self.look()
        found = self.clips.get(Path(name).name, [])
        if len(found) != 1:
            raise Rejected("no such video" if not found else "several videos have this name", name)
        return str(found[0])

    def frames(self, folder):
        """The pictures in the folder of this name, in the order of their numbers; raises Rejected."""
        if self.folders is None:
            self.look()
        found = self.folders.get(str(folder))
        files = [file for file in found.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png")] if found else []
        if not files:
            raise Rejected("no folder of frames", folder)
        number = {file: [int(digits) for digits in re.findall(r"\d+", file.stem)] for file in files}
        return [str(file) for file in sorted(files, key=lambda file: (number[file], file.name))]

    def image(self, value):
        """The path of a picture, given as one or as the bytes of a parquet row; raises Rejected where it does not open."""
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if not value:
            raise Rejected("no image")
        if isinstance(value, str):
            file = self.beside(value)
            if not file:
                raise Rejected("no such image", value)
            check_image(file)
            return str(file)
        name = f"images/{hashlib.sha256(value).hexdigest()[:16]}.{check_image(io.BytesIO(value))}"
        file = self.out / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, value)
        return name


def check_image(file):
    """The image's format in small letters, after it has been decoded; raises Rejected."""
    try:
        return read_picture(file)[1].lower()
    except BadPicture as bad:
        raise Rejected(f"the image {bad.reason}", bad) from bad
