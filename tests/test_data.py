"""Records: what is kept, what is refused and how the message reads, frames, and the trainers' data set."""

import json

import av
import numpy as np
import pytest
from PIL import Image

import data

QUESTION = {"id": "q1", "suite": "toy", "question": "Where?", "options": {"A": "left", "B": "right"}, "frames": [], "answer": "A"}
PAIR = QUESTION | {"response_1": r"\boxed{A}", "response_2": r"\boxed{B}", "preference": 1, "source_1": "x", "source_2": "y"}

BAD = [  # (changes, is it a pair, what the message names)
    ({"id": None}, False, "'id' must be a non-empty string"),
    ({"question": " "}, False, "'question' must be a non-empty string"),
    ({"answer": 3}, False, "'answer' must be a non-empty string"),
    ({"answer": "C"}, False, "names none of the options"),
    ({"answer": "C", "options": None}, False, "letter without options"),
    ({"options": ["left", "right"]}, False, "'options' must be null or letters with texts"),
    ({"options": {}}, False, "'options' must be null or letters with texts"),
    ({"options": {"A": 1}}, False, "'options' must be null or letters with texts"),
    ({"frames": "a.png"}, False, "'frames' must be a list of paths"),
    ({"frames": None}, False, "needs 'frames'"),
    ({"frames": ["missing.png"]}, False, "no such file"),
    ({"frames": None, "video": 7}, False, "'video' must be a path"),
    ({"frames": None, "video": "missing.mp4"}, False, "no such file"),
    ({"preference": 0}, True, "'preference' must be 1 or 2"),
    ({"preference": True}, True, "'preference' must be 1 or 2"),
    ({"preference": 1.0}, True, "'preference' must be 1 or 2"),
    ({"preference": "1"}, True, "'preference' must be 1 or 2"),
    ({"response_2": None}, True, "'response_2' must be a non-empty string"),
    ({"source_1": ""}, True, "'source_1' must be a non-empty string"),
]


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("changes, pair, message", BAD, ids=[message for *_, message in BAD])
def test_a_bad_record_names_file_line_and_field(tmp_path, changes, pair, message):
    good = PAIR if pair else QUESTION
    path = write(tmp_path / "records.jsonl", good, good | {"id": "q2"} | changes)
    with pytest.raises(data.RecordError) as error:
        data.load_records(path, pair=pair)
    assert f"{path}:2" in str(error.value) and message in str(error.value)


def test_lines_that_are_no_records(tmp_path):
    path = write(tmp_path / "records.jsonl", QUESTION)
    for line, message in ((json.dumps(QUESTION)[:40], "not JSON"), ("[1]", "expected an object"), (json.dumps(QUESTION), "stands already in line 1")):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(path.read_text() + line + "\n")
        with pytest.raises(data.RecordError, match=message) as error:
            data.load_records(bad)
        assert f"{bad}:2" in str(error.value)


def test_no_file_and_no_records(tmp_path):
    with pytest.raises(data.RecordError, match="no such file"):
        data.load_records(tmp_path / "absent.jsonl")
    with pytest.raises(data.RecordError, match="no records"):
        data.load_records(write(tmp_path / "empty.jsonl"))


def test_counts_are_printed_and_limit_holds(tmp_path, capsys):
    path = write(tmp_path / "records.jsonl", *(QUESTION | {"id": str(i)} for i in range(5)))
    assert [r["id"] for r in data.load_records(path, limit=3)] == ["0", "1", "2"]
    assert "read 3, kept 3, rejected 0" in capsys.readouterr().out


def test_rows_of_the_training_data_set(tmp_path):
    frames = []
    for i in range(2):
        Image.new("RGBA", (30, 30), (255 * i, 0, 0)).save(tmp_path / f"{i}.png")
        frames.append(f"{i}.png")
    path = write(tmp_path / "pairs.jsonl", PAIR | {"frames": frames}, PAIR | {"id": "q2", "options": {"C": "up"}, "answer": "C"})
    rows = data.training_dataset(data.load_records(path, pair=True), "no_self_ref")
    first, second = rows[0], rows[1]
    assert [image.mode for image in first["images"]] == ["RGB"] * 2 and first["images"][1].getpixel((0, 0)) == (255, 0, 0)
    assert [block["type"] for block in first["prompt"][1]["content"]] == ["image", "image", "text"]
    assert second["options"] == {"C": "up"}  # no letters of other rows, as Arrow would add them
    assert (first["answer"], first["preference"], first["self_reference"], second["images"]) == ("A", 1, False, [])
    question = data.training_dataset([QUESTION])[0]
    assert question["preference"] is None and question["self_reference"] is True and "<pred>" not in str(question["prompt"])


def test_a_picture_that_is_cut_or_none_names_its_file(tmp_path):
    Image.effect_noise((64, 64), 90).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    (tmp_path / "none.png").write_bytes(b"no picture")
    for name in ("cut.png", "none.png"):
        with pytest.raises(data.RecordError, match=f"{name}: cannot be opened as an image"):
            data.open_frames({"frames": [str(tmp_path / name)]})


def film(path, n):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(n):
            pixels = np.full((48, 64, 3), 20 * i, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("n, asked, places", [(10, 4, [0, 3, 6, 9]), (3, 8, [0, 1, 2]), (5, 1, [0]), (1, 4, [0])])
def test_frames_of_a_video_are_spread_from_first_to_last(tmp_path, n, asked, places):
    images = data.read_clip(film(tmp_path / "clip.mp4", n), asked)["frames"]
    assert [round(image.getpixel((32, 24))[0] / 20) for image in images] == places


def test_a_file_that_is_no_video(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(data.RecordError, match="cannot be decoded"):
        data.read_clip(tmp_path / "clip.mp4", 4)
