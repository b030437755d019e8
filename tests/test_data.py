"""Records: what is kept, what is refused and how the message reads, frames, and the trainers' data set."""

import io
import json
import struct
import zlib

import av
import numpy as np
import pytest
from PIL import Image

import data
import rewards
from data import media, source_files

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


def draw(path, image, **options):
    image.save(path, **options)
    return path


def oriented(place):
    """A picture whose top left corner is white, as a camera stores it that writes `place` (EXIF 274) beside it."""
    stored = Image.new("RGB", (60, 40), "black")
    stored.paste("white", (0, 0, 20, 15))
    exif = Image.Exif()
    exif[274] = place
    return stored, exif


UPRIGHT = [  # (EXIF orientation, file, size, where the white corner belongs, why)
    (1, "a.jpg", (60, 40), (2, 2), "as it is"),
    (3, "a.jpg", (60, 40), (57, 37), "upside down"),
    (6, "a.jpg", (40, 60), (37, 2), "a phone held upright: a quarter turn clockwise"),
    (8, "a.jpg", (40, 60), (2, 57), "the other way"),
    (2, "a.jpg", (60, 40), (57, 2), "mirrored, as front cameras do"),
    (6, "a.png", (40, 60), (37, 2), "PNG has EXIF, too"),
    (6, "a.webp", (40, 60), (37, 2), "and WebP"),
]


@pytest.mark.parametrize("place, name, size, white, why", UPRIGHT, ids=[f"{u[1]} {u[-1]}" for u in UPRIGHT])
def test_a_photograph_stands_upright(tmp_path, place, name, size, white, why):
    stored, exif = oriented(place)
    image = media.open_picture(draw(tmp_path / name, stored, exif=exif))
    assert image.size == size and image.getpixel(white)[0] > 200, why
    assert sum(image.getpixel((x, y))[0] > 200 for x in (2, size[0] - 3) for y in (2, size[1] - 3)) == 1


def ramp(dtype, most):
    return Image.fromarray(np.linspace(0, most, 900).reshape(30, 30).astype(dtype))


DEPTHS = [  # (file, picture, levels of grey that are left at least, the brightest, is it said, why)
    ("a.png", ramp(np.uint16, 65535), 250, 255, True, "a depth camera's PNG"),
    ("a.tiff", ramp(np.uint16, 65535), 250, 255, True, "a microscope's TIFF"),
    ("a.png", ramp(np.uint16, 4095), 16, 15, True, "12 bits in 16: dark, but not two levels"),
    ("a.pgm", ramp(np.uint16, 65535), 250, 255, True, "16-bit PGM, which Pillow opens with 32 bits"),
    ("a.png", ramp(np.uint8, 255), 250, 255, False, "8 bits stay as they are"),
]


@pytest.mark.parametrize("name, picture, levels, most, said, why", DEPTHS, ids=[d[-1] for d in DEPTHS])
def test_sixteen_bits_become_eight_and_it_is_said_once(tmp_path, capsys, name, picture, levels, most, said, why):
    media.note_once.cache_clear()
    path = draw(tmp_path / name, picture)
    grey = np.asarray(media.open_picture(path))[..., 0]
    assert len(np.unique(grey)) >= levels and (grey.min(), grey.max()) == (0, most), why
    media.open_picture(path)
    assert capsys.readouterr().err.count("scaled to 8 bits") == said, "once, where it was done"


CLEAR = [  # (picture of one black dot on a transparent ground, why)
    (Image.new("RGBA", (30, 30), (0, 0, 0, 0)), "a drawing program's layer"),
    (Image.new("LA", (30, 30), (0, 0)), "grey with transparency"),
    (Image.new("P", (30, 30), 3), "a palette with one transparent colour"),
    (Image.new("L", (30, 30), 7), "one grey that counts as transparent"),
]


@pytest.mark.parametrize("picture, why", CLEAR, ids=[c[-1] for c in CLEAR])
def test_a_transparent_ground_is_white(tmp_path, picture, why):
    picture.putpixel((9, 9), {"RGBA": (0, 0, 0, 255), "LA": (0, 255), "P": 0, "L": 0}[picture.mode])
    transparency = {"P": {"transparency": 3}, "L": {"transparency": 7}}.get(picture.mode, {})
    if picture.mode == "P":
        picture.putpalette([0, 0, 0, 9, 9, 9, 8, 8, 8, 0, 0, 0])
    image = media.open_picture(draw(tmp_path / "a.png", picture, **transparency))
    assert image.getpixel((0, 0)) == (255, 255, 255) and image.getpixel((9, 9)) == (0, 0, 0), why


def test_half_transparent_is_mixed_with_white(tmp_path):
    half = media.open_picture(draw(tmp_path / "a.webp", Image.new("RGBA", (30, 30), (0, 0, 0, 128)), lossless=True))
    assert half.getpixel((3, 3)) == (127, 127, 127)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(*chunks, size=(30, 30)):
    """A grey PNG of its chunks, its pixels absent where it says more of them than a file should hold."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0))
    pixels = zlib.compress(b"\0" * 31 * 30)
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def frames_of(kind, n=3):
    stream = io.BytesIO()
    first, *rest = (Image.new("RGB", (30, 30), (60 * i, 0, 0)) for i in range(n))
    first.save(stream, kind, save_all=True, append_images=rest, duration=100)
    return stream.getvalue()


def noise(kind, share):
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(stream, kind)
    return stream.getvalue()[: int(len(stream.getvalue()) * share)]


LARGE = zlib.compress(b"a" * 2_000_000)
FAULTY = [  # (file, content, what the message and the count say, the remedy, why)
    ("a.png", png(chunk(b"zTXt", b"note\0\0" + LARGE)), "too much text or profile", "save it without these", "2 MB of compressed text"),
    ("a.png", png(chunk(b"iTXt", b"note\0\1\0\0\0" + LARGE)), "too much text or profile", "save it without these", "the same, international"),
    ("a.png", png(chunk(b"iCCP", b"icc\0\0" + LARGE)), "too much text or profile", "save it without these", "2 MB of colour profile"),
    ("a.png", png(size=(20000, 20000)), "too large to be opened", "make it smaller", "400 million pixels"),
    ("a.png", png(size=(200000, 1000)), "too large to be opened", "make it smaller", "a long strip is as many"),
    ("a.bmp", b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 20000, 20000, 1, 24, 0, 0, 0, 0, 0, 0), "too large to be opened", "make it smaller", "in another format"),
    ("a.png", noise("PNG", 0.4), "cannot be opened as an image", "copy it again", "a cut PNG"),
    ("a.jpg", noise("JPEG", 0.4), "cannot be opened as an image", "copy it again", "a cut JPEG"),
    ("a.webp", noise("WEBP", 0.4), "cannot be opened as an image", "copy it again", "a cut WebP"),
    ("a.png", b"no picture", "cannot be opened as an image", "copy it again", "no picture"),
    ("a.png", b"", "cannot be opened as an image", "copy it again", "nothing"),
    ("a.gif", frames_of("GIF"), "is animated", "make it a video", "an animated GIF"),
    ("a.webp", frames_of("WEBP"), "is animated", "make it a video", "an animated WebP"),
    ("a.png", frames_of("PNG"), "is animated", "make it a video", "an animated PNG"),
    ("a.tiff", frames_of("TIFF"), "is animated", "make it a video", "several pages"),
]


@pytest.mark.parametrize("name, content, message, remedy, why", FAULTY, ids=[f[-1] for f in FAULTY])
def test_a_picture_that_cannot_be_used_names_its_file_and_is_counted(tmp_path, name, content, message, remedy, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(data.RecordError, match=f"{name}: .*{message}.*{remedy}"):
        data.open_frames({"frames": [str(tmp_path / name)]})
    with pytest.raises(source_files.Rejected) as rejected:
        source_files.check_image(io.BytesIO(content))
    assert rejected.value.reason.startswith("the image ") and message.removesuffix(" as an image") in rejected.value.reason


SINGLE = [("a.gif", "GIF"), ("a.webp", "WEBP"), ("a.png", "PNG"), ("a.jpg", "MPO")]


@pytest.mark.parametrize("name, kind", SINGLE)
def test_one_frame_is_a_picture(tmp_path, name, kind):
    """Of formats that may hold several; and a photograph with its preview (MPO) is one picture."""
    (tmp_path / name).write_bytes(frames_of(kind, 2 if kind == "MPO" else 1))
    assert media.open_picture(tmp_path / name).size == (30, 30)


def test_values_of_no_known_range_are_refused(tmp_path):
    for picture in (ramp(np.float32, 1), ramp(np.int32, 10**6)):
        with pytest.raises(data.RecordError, match="a.tiff: has values of no known range .*save it with 8 bits"):
            media.open_picture(draw(tmp_path / "a.tiff", picture))


OPTIONS = [  # (options as they come, as they are read, why)
    ({"A": "left", "B": "right", "C": None}, {"A": "left", "B": "right"}, "Arrow fills rows with two options up to three"),
    ({"A": None, "B": None}, None, "a row without options among rows with them"),
    ('{"A": "left", "B": null}', {"A": "left"}, "a column of JSON texts"),
    ("null", None, "a JSON text of none"),
    (None, None, "none"),
]


@pytest.mark.parametrize("given, read, why", OPTIONS, ids=[o[-1] for o in OPTIONS])
def test_absent_options_are_left_out_as_the_rewards_leave_them_out(tmp_path, given, read, why):
    answer = "A" if read else "left"
    path = write(tmp_path / "records.jsonl", QUESTION | {"options": given, "answer": answer})
    assert data.load_records(path)[0]["options"] == data.RecordFile(path)[0]["options"] == rewards.read_options(given) == read, why


def test_an_absent_option_is_no_answer(tmp_path):
    path = write(tmp_path / "records.jsonl", QUESTION | {"options": {"A": "left", "B": "right", "C": None}, "answer": "C"})
    with pytest.raises(data.RecordError, match="answer 'C' names none of the options"):
        data.load_records(path)


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
    images = media.read_clip(film(tmp_path / "clip.mp4", n), asked)["frames"]
    assert [round(image.getpixel((32, 24))[0] / 20) for image in images] == places


def test_a_file_that_is_no_video(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(data.RecordError, match="cannot be decoded"):
        media.read_clip(tmp_path / "clip.mp4", 4)
