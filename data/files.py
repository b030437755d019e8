"""Files: JSON lines read with a clear error, written whole or not at all; what names a file's content, and what made a result.
"""

import fcntl
import functools
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from stats import row_key

ROOT = Path(__file__).resolve().parents[1]


class RecordError(ValueError):
    """A record that cannot be used; the message names file, line, field and remedy."""


def read_lines(path):
    """Yield (line number from 1, place in bytes, object) of a JSONL file; raises RecordError on a line that is no object."""
    path, place = Path(path), 0
    if not path.is_file():
        raise RecordError(f"{path}: no such file; give a JSONL file of records, or leave --dataset out")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, place, read_object(line, f"{path}:{number}")
            place += len(line)


def read_object(line, where):
    """The object that a line of JSON holds; raises RecordError, `where` being "file:line", on anything else."""
    try:
        record = json.loads(line)
    except ValueError as error:  # also bytes that are no UTF-8
        raise RecordError(f"{where}: not JSON ({error}); is the line cut off?") from error
    if not isinstance(record, dict):
        raise RecordError(f"{where}: expected an object, got {type(record).__name__}")
    return record


def read_jsonl(path):
    """Yield (line number from 1, object) of a JSON-lines file; raises RecordError on a line that is no object."""
    return ((number, record) for number, _, record in read_lines(path))


def write_whole(path, content):
    """Write a text (as UTF-8) or bytes to a file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    temporary.replace(path)


def write_lines(path, rows):
    """Write a JSONL file whole or not at all."""
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


def open_lines(path):
    """A JSONL file to read and append to, locked until the process ends; a last line that a kill cut off is removed.

    Raises BlockingIOError where another process has it open so.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    stream = Path(path).open("a+b")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however it ends
    except BlockingIOError:
        stream.close()
        raise
    end = stream.seek(0, os.SEEK_END)
    while end:  # back to the end of the last whole line
        start = max(0, end - 65536)
        stream.seek(start)
        cut = stream.read(end - start).rfind(b"\n")
        end = start + cut + 1
        if cut >= 0:
            break
    stream.truncate(end)
    return stream


def read_rows(path, without=None):
    """Rows of a result's JSONL; raises ValueError naming file and line on a row that is no JSON or stands twice.

    `without` names a field that is dropped at once: the texts of a large result take most of its memory.
    """
    rows = {}
    with Path(path).open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if line == "\n":
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON ({error}); delete the line and evaluate again") from error
            if row_key(row) in rows:
                raise ValueError(f"{path}:{number}: {row_key(row)} stands twice; delete the file and evaluate again")
            row.pop(without, None)
            rows[row_key(row)] = row
    return list(rows.values())


def short_sha(*parts):
    """Twelve hex digits that stand for the given texts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def content_sha(path):
    """Twelve hex digits of a file, or of a folder's weights; None for a hub id."""
    path = Path(path)
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return short_sha(*digests) if digests else None


def open_rows(path, result_path, settings):
    """(open JSONL to append to, rows already there) of this configuration; a last line that was cut off is removed.

    Raises SystemExit where the rows were written with other settings, or another process is writing them now.
    """
    try:
        stream = open_lines(path)
    except BlockingIOError:
        raise SystemExit(f"{path}: another evaluation is writing this file; wait for it, or give another --out")
    rows = read_rows(path, without="text")
    found = read_result(result_path).get("config", {})
    odd = [f"{k} was {found.get(k)!r}, is now {settings[k]!r}" for k in settings if found.get(k) != settings[k]]
    if rows and odd:
        raise SystemExit(f"{path} stems from another configuration ({'; '.join(odd)}); delete it, or give another --out")
    return stream, rows


def read_result(path):
    """The result at `path`, {} where there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_result(path, result):
    """Write the result whole or not at all."""
    write_whole(path, json.dumps(result, indent=1) + "\n")


def provenance():
    """The command, commit, versions and machine that made a result; commit None outside a git repository."""
    import torch  # here, so that reading records needs neither
    import transformers

    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return {"command": shlex.join(["python", *sys.argv]), "commit": commit(), "versions": versions, "machine": machine()}


@functools.cache
def commit():
    """The commit of the code that runs, "-dirty" behind it where files differ; None outside a git repository. Asked before the
    work begins: what a script goes on to write does not change the code that runs."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        return None


def machine():
    """The accelerator, or how much of the CPU is in use."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores"


def json_sha(*parts):
    """Hex digits that stand for the given parts, as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
