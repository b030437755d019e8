"""Rough use: full disks, places that cannot be written, two writers, kills, hostile weights, servers and texts."""

import errno
import gzip
import http.server
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jinja2
import pytest
import torch
import trl

import data
import prompts
from analysis import report
from data import files
from judging import models, server_reply
from judging.calls import Call, CallCache, Missing, Reply
from judging.server import ServerBackend
from tests import tiny_critic
from tests.fault_proxy import reply

ROOT = Path(__file__).parent.parent
SOURCES = [file for file in ROOT.rglob("*.py") if not {"tests", "runs", ".venv", "experiments"} & set(file.relative_to(ROOT).parts)]
KEY = "sk-very-secret"


def child(script, *words, **more):
    """A Python process that runs `script` in the repository, as Popen."""
    words = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


# --- writing ----------------------------------------------------------------------------------------------------------


def full_after(size):
    """For a child process: no file may grow beyond `size` bytes, so that a write stops in its middle as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_leaves_a_result_as_it_was_and_is_named(tmp_path):
    files.write_whole(tmp_path / "r.json", "before")
    writing = child("import sys; from data import files; from pathlib import Path\n"
                    "files.write_whole(Path(sys.argv[1]), 'x' * 100_000)", tmp_path / "r.json", preexec_fn=full_after(5000))  # fmt: skip
    error = writing.communicate()[1].splitlines()[-1]
    assert writing.returncode and str(tmp_path / "r.json") in error and "make room" in error, error
    assert (tmp_path / "r.json").read_text() == "before" and os.listdir(tmp_path) == ["r.json"], "nothing half-written stays"


def test_a_full_disk_while_rows_are_appended_loses_no_whole_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    script = "import sys, json; from data import files; s = files.open_lines(sys.argv[1])\n"
    script += "for i in range(1000): files.append(s, json.dumps({'id': i, 'text': 'x' * 90}).encode() + b'\\n')"
    writing = child(script, path, preexec_fn=full_after(5050))
    error = writing.communicate()[1]
    assert writing.returncode and str(path) in error and "make room" in error, error
    assert not path.read_bytes().endswith(b"\n"), "the last row was cut: else this test tests nothing"
    with files.open_lines(path) as stream:
        files.append(stream, b'{"id": "next"}\n')
    ids = [row["id"] for row in files.read_rows(path)]
    assert ids == [*range(len(ids) - 1), "next"] and len(ids) > 40


def test_a_full_disk_is_named_by_a_cache_of_calls(tmp_path, monkeypatch):
    cache = CallCache(tmp_path / "calls.jsonl")

    class Full:
        name = str(tmp_path / "calls.jsonl")

        def write(self, line):
            raise OSError(errno.ENOSPC, "No space left on device")

    cache.stream.close()
    cache.stream = Full()
    with pytest.raises(OSError, match="No space left on device; make room.*calls.jsonl"):
        cache.add("k", Reply("text", []), {})


def under_a_file(folder):
    (folder / "file").write_text("no folder")
    return folder / "file" / "out.jsonl"


def in_proc(folder):
    return Path("/proc/out.jsonl")  # which not even root can write to


@pytest.mark.parametrize("place", [under_a_file, in_proc, lambda folder: folder], ids=["a file for a folder", "read-only", "a folder for a file"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    path = place(tmp_path)
    for write in (lambda: files.open_lines(path), lambda: files.write_whole(path, "text"), lambda: CallCache(path)):
        with pytest.raises(OSError, match="give another place") as error:
            write()
        assert str(path) in str(error.value)


def test_two_writers_of_one_result_leave_one_of_both_whole(tmp_path):
    """Processes and threads that write the same file, and its neighbour of another ending, again and again."""
    script = "import sys; from data import files; from pathlib import Path\n"
    script += "for _ in range(150): files.write_whole(Path(sys.argv[1]), sys.argv[2] * 50_000)"
    writing = [child(script, tmp_path / name, letter) for name, letter in (("r.json", "a"), ("r.json", "b"), ("r.jsonl", "c"))]

    def rewrite(letter):
        for _ in range(150):
            files.write_whole(tmp_path / "r.json", letter * 50_000)

    threads = [threading.Thread(target=rewrite, args=(letter,)) for letter in "de"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in writing:
        assert process.communicate()[1] == "" and process.returncode == 0
    for name, letters in (("r.json", "abde"), ("r.jsonl", "c")):
        text = (tmp_path / name).read_text()
        assert len(text) == 50_000 and len(set(text)) == 1 and text[0] in letters
    assert sorted(os.listdir(tmp_path)) == ["r.json", "r.jsonl"]


def test_a_second_writer_of_rows_is_refused(tmp_path):
    script = "import sys, time; from data import files; s = files.open_lines(sys.argv[1]); print('open', flush=True); time.sleep(60)"
    first = child(script, tmp_path / "rows.jsonl")
    assert first.stdout.readline() == "open\n"
    try:
        with pytest.raises(SystemExit, match="rows.jsonl: another evaluation is writing this file; wait for it, or give another --out"):
            files.open_rows(tmp_path / "rows.jsonl", tmp_path / "rows.json", {})
        with pytest.raises(ValueError, match="rows.jsonl: another verifier is writing this file"):
            CallCache(tmp_path / "rows.jsonl")
    finally:
        first.kill()
        first.communicate()
    files.open_lines(tmp_path / "rows.jsonl").close()  # the lock went with the process


def test_a_kill_in_the_middle_of_a_write_leaves_whole_files(tmp_path):
    script = "import sys, json; from data import files; from pathlib import Path; folder = Path(sys.argv[1])\n"
    script += "s, i = files.open_lines(folder / 'rows.jsonl'), 0\n"
    script += "while True:\n  i += 1; files.write_whole(folder / 'r.json', json.dumps([i] * 200_000))\n"
    script += "  files.append(s, json.dumps({'id': i, 'text': 'x' * 500_000}).encode() + b'\\n')\n"
    for n in range(3):
        writing = child(script, tmp_path)
        deadline = time.time() + 60
        while time.time() < deadline and not ((tmp_path / "rows.jsonl").exists() and (tmp_path / "rows.jsonl").stat().st_size):
            time.sleep(0.005)
        time.sleep(0.05 + 0.013 * n)
        writing.send_signal(signal.SIGKILL)
        writing.communicate()
        numbers = json.loads((tmp_path / "r.json").read_text())
        assert len(numbers) == 200_000 and len(set(numbers)) == 1
        files.open_lines(tmp_path / "rows.jsonl").close()
        rows = files.read_rows(tmp_path / "rows.jsonl")
        assert [row["id"] for row in rows] == list(range(1, len(rows) + 1)) and all(len(row["text"]) == 500_000 for row in rows)
        (tmp_path / "rows.jsonl").write_bytes(b"")


# --- what others wrote ------------------------------------------------------------------------------------------------


class Trap:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


def test_the_trap_works(tmp_path):
    """Else the next tests test nothing."""
    torch.save({"weight": Trap(tmp_path / "sprung")}, tmp_path / "a.bin")
    torch.load(tmp_path / "a.bin", weights_only=False)
    assert (tmp_path / "sprung").exists()


def test_a_pickle_in_a_models_folder_is_never_run(tmp_path):
    folder = Path(tiny_critic.make_model(tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    for write in (torch.save, lambda trap, file: file.write_bytes(pickle.dumps(trap))):
        write({"weight": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
        with pytest.raises((OSError, ValueError, RuntimeError, pickle.UnpicklingError)):
            models.load_model(folder)
        assert not (tmp_path / "sprung").exists()


def test_every_load_of_ours_takes_weights_only():
    calls = [(file, line) for file in SOURCES for line in file.read_text(encoding="utf-8").splitlines() if "torch.load(" in line]
    assert calls and all("weights_only=True" in line for _, line in calls), calls
    assert not [file for file in SOURCES if re.search(r"^\s*(import|from) (pickle|dill|joblib|cloudpickle)\b", file.read_text(), re.M)]


def test_a_models_own_code_is_not_run_unless_asked_for(tmp_path, monkeypatch):
    """In our sources nobody asks for it, TRL's default is no, and a folder that wants it is refused."""
    assert not [file for file in SOURCES if re.search(r"trust_remote_code\W+True", file.read_text(encoding="utf-8"))]
    settings = [config.__dataclass_fields__.get("trust_remote_code") for config in (trl.ModelConfig, trl.GRPOConfig, trl.DPOConfig, trl.ScriptArguments)]
    assert any(settings) and not any(field.default for field in settings if field)
    folder = Path(tiny_critic.make_model(tmp_path / "model"))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: (_ for _ in ()).throw(EOFError()))  # nobody is there to say yes
    with pytest.raises((ValueError, EOFError, OSError)):
        models.load_model(folder)
    assert not (tmp_path / "sprung").exists()


# --- servers ------------------------------------------------------------------------------------------------------------


class Serving:
    """A server on 127.0.0.1 whose requests `handle(handler)` answers; `headers` of all requests."""

    def __init__(self, handle):
        self.headers = headers = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                headers.append(dict(self.headers))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    handle(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def send(handler, body, status=200, **headers):
    handler.send_response(status)
    for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


GOOD = json.dumps(reply([(r"\boxed{A}", [])])).encode()


def ask(url):
    """What a served judge makes of one question."""
    backend = ServerBackend(url, "m", KEY, route="text", retries=0, timeout=20.0)
    [(_, found)] = backend.write([Call(prompts.messages("You judge.", 0, "Which?"), (), None)])
    return found


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_host_does_not_carry_the_key(status):
    with Serving(lambda handler: send(handler, GOOD)) as other:
        for elsewhere in (other.url, other.url.replace("127.0.0.1", "localhost")):
            with Serving(lambda handler: send(handler, b"", status, Location=f"{elsewhere}/chat/completions")) as first:
                ask(first.url)
                assert KEY in str(first.headers), "the server that was named gets the key"
        assert other.headers and KEY not in str(other.headers)


def endless(handler, status=200):
    handler.send_response(status)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"4000\r\n" + b" " * 0x4000 + b"\r\n")


BODIES = [  # (how the server answers, what the reason says, why)
    (endless, "more than 1000000 bytes", "a body without end"),
    (lambda handler: endless(handler, 500), "more than 1000000 bytes", "an error's body without end"),
    (lambda handler: send(handler, b" " * 1_000_001), "more than 1000000 bytes", "one byte too many"),
    (lambda handler: send(handler, gzip.compress(b" " * 10**8), Content_Encoding="gzip"), "a compressed reply", "100 MB in 100 kB"),
]


@pytest.mark.parametrize("handle, reason, why", BODIES, ids=[b[-1] for b in BODIES])
def test_a_reply_has_a_bound(monkeypatch, handle, reason, why):
    monkeypatch.setattr(server_reply, "MOST_BYTES", 1_000_000)
    with Serving(handle) as server:
        found = ask(server.url)
    assert isinstance(found, Missing) and reason in found.reason, found


def test_a_reply_within_the_bound_is_read(monkeypatch):
    monkeypatch.setattr(server_reply, "MOST_BYTES", 1_000_000)
    with Serving(lambda handler: send(handler, GOOD + b" " * (1_000_000 - len(GOOD)))) as server:
        assert ask(server.url).text == r"\boxed{A}"


# --- pages --------------------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert('a')</script><img src=x onerror=alert(1)> {{ 7 * 7 }} </title></style>"


def test_hostile_text_in_the_report_stays_text():
    """Each text that the page takes from a result, a section or a browser of cases; test_report.py opens it in a browser."""
    group = {"title": HOSTILE, "rows": [dict.fromkeys(("label", "text", "n"), HOSTILE)] * 3, "command": HOSTILE, "record": HOSTILE}
    section = {"id": "one", "title": HOSTILE, "source": HOSTILE, "text": [HOSTILE], "figures": []}
    section["tables"] = [{"title": HOSTILE, "cells": [[HOSTILE], [HOSTILE]]}]
    about = {"command": HOSTILE, "commit": HOSTILE}
    case = dict.fromkeys("key suite kind question id frames facts answer prediction pred_think think text order".split(), HOSTILE)
    case |= {"options": {HOSTILE: HOSTILE}, "responses": [{"text": HOSTILE, "source": HOSTILE, "right": True, "chosen": False}]}
    case |= {"n_frames": 1, "verdict_shown": 1, "verdict_correct": False, "prediction_correct": False, "cut_off": False}
    browser = {"cases": [case], "suites": {HOSTILE: 1}, "kinds": {HOSTILE: 1}, "judged": {HOSTILE: {HOSTILE: 1}}, "how": HOSTILE}
    page = report.render([group], [section], browser | about | {"evaluation": about})
    assert page.count("&lt;script&gt;") > 25 and "{{ 7 * 7 }}" in page
    assert "<script>alert" not in page and "<img src=x" not in page and page.count("<script") == 1, "its own script alone"
    assert page.count("</title>") == 1


def test_every_page_of_ours_escapes_by_itself():
    makers = [file for file in SOURCES if re.search(r"jinja2\.Environment|Template\(", file.read_text(encoding="utf-8"))]
    assert makers and all("autoescape=True" in file.read_text(encoding="utf-8") for file in makers)
    templates = [file for file in ROOT.rglob("*.j2") if "runs" not in file.parts]
    let_through = {text.strip() for file in templates for text in re.findall(r"\{\{([^}]*)\| *safe", file.read_text(encoding="utf-8"))}
    assert templates and let_through <= {"figure.svg"}, "made by analysis/report_figures.py, which escapes"
    assert jinja2.Environment(autoescape=True).from_string("{{ a }}").render(a="<b>") == "&lt;b&gt;"


def test_records_are_read_where_ids_and_texts_are_hostile(tmp_path):
    record = {"id": HOSTILE, "suite": "../../x", "question": HOSTILE, "options": None, "frames": [], "answer": HOSTILE}
    (tmp_path / "q.jsonl").write_text(json.dumps(record) + "\n")
    assert data.load_records(tmp_path / "q.jsonl")[0]["id"] == HOSTILE and os.listdir(tmp_path) == ["q.jsonl"]
