"""data/media.py on real files that these tests write: which frames, when, how large, which way up, and what is refused."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import RecordError, media

ROOT = Path(__file__).parent.parent
STEP = 7  # grey levels between one frame and the next: a frame's number can be read from its brightness


def write(path, n=10, size=(64, 48), codec="libx264", rate=10, pixels="yuv420p", key_every=4, times=None, rotation=0, whole=True):
    """A video whose frame i is grey 20 + 7 i; `times` in milliseconds where the rate varies; top left corner white."""
    options = {"movflags": "faststart"} if not whole else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.bit_rate = 4_000_000  # else mpeg4 lets a small change of grey go
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, pixels, key_every
        if not n:
            container.start_encoding()  # else no header is written
        if rotation:
            stream.set_display_rotation(rotation)
        if times:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(n):
            picture = np.full((size[1], size[0], 3), 20 + STEP * i % 220, np.uint8)
            picture[: size[1] // 3, : size[0] // 3] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def numbers(images):
    """The frames' numbers, from their brightness."""
    return [round((np.asarray(image)[-8:, -8:].mean() - 20) / STEP) for image in images]


FORMATS = [  # (file, codec, pixels): containers with and without key frame index, B-frames, lossless, odd chroma
    ("a.mp4", "libx264", "yuv420p"),
    ("b.mp4", "mpeg4", "yuv420p"),
    ("c.avi", "mpeg4", "yuv420p"),
    ("d.mkv", "ffv1", "yuv444p"),
    ("e.webm", "libvpx-vp9", "yuv420p"),
    ("f.ts", "libx264", "yuv420p"),
]


@pytest.mark.parametrize("name, codec, pixels", FORMATS, ids=[f[0] for f in FORMATS])
def test_frames_by_count_in_every_container(tmp_path, name, codec, pixels):
    path = write(tmp_path / name, n=30, codec=codec, pixels=pixels)
    for count in (1, 2, 5, 30):
        images, seconds = media.video_frames(path, count=count)
        places = [round(i * 29 / max(count - 1, 1)) for i in range(count)]
        assert numbers(images) == places, "evenly by number, first and last included"
        assert seconds == pytest.approx([place / 10 for place in places], abs=2e-3)
        assert all(image.mode == "RGB" and image.size == (64, 48) for image in images)


def test_few_frames_of_many_agree_with_all_frames(tmp_path):
    """Jumping to key frames and decoding straight through are two ways to the same pixels."""
    path = write(tmp_path / "a.mp4", n=40, key_every=7)
    every, when = media.video_frames(path)
    few, at = media.video_frames(path, count=6)
    for image, second in zip(few, at, strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(every[when.index(second)]))
    times, base, keys = media.read_times(path)
    assert len(times) == 40 and len(keys) >= 5
    counted = media.decode(path, times, [0, 8, 16, 23, 31, 39], None, None)
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(few, counted, strict=True))


def test_fewer_frames_than_asked(tmp_path):
    images, seconds = media.video_frames(write(tmp_path / "a.mp4", n=3), count=8)
    assert numbers(images) == [0, 1, 2] and seconds == pytest.approx([0, 0.1, 0.2])
    images, seconds = media.video_frames(write(tmp_path / "one.mp4", n=1), count=8)
    assert numbers(images) == [0] and seconds == [0.0]
    assert media.video_frames(tmp_path / "one.mp4", fps=5)[1] == [0.0]


def test_by_fps(tmp_path):
    path = write(tmp_path / "a.mp4", n=26)  # 2.5 s at 10 frames a second
    assert media.video_frames(path, fps=2)[1] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    assert media.video_frames(path, fps=1)[1] == pytest.approx([0, 1, 2, 2.5]), "the last frame is there though no second ends on it"
    assert numbers(media.video_frames(path, fps=100)[0]) == list(range(26)), "no frame twice where fps is above the file's"
    images, seconds = media.video_frames(path, fps=10, max_frames=4)
    assert numbers(images) == [0, 8, 17, 25] and seconds == pytest.approx([0, 0.8, 1.7, 2.5]), "thinned evenly, ends kept"


def test_span(tmp_path):
    path = write(tmp_path / "a.mp4", n=20)
    images, seconds = media.video_frames(path, count=3, span=(4, 8))
    assert numbers(images) == [4, 6, 8] and seconds == pytest.approx([0.4, 0.6, 0.8])
    assert numbers(media.video_frames(path, fps=5, span=(4, 9))[0]) == [4, 6, 8, 9] and numbers(media.video_frames(path, count=4, span=(7, 7))[0]) == [7]
    for span in ((0, 20), (5, 4), (-1, 3)):
        with pytest.raises(RecordError, match="the video has 20 frames"):
            media.video_frames(path, count=3, span=span)


def test_variable_frame_rate(tmp_path):
    times = [0, 40, 80, 120, 1000, 1040, 3000, 3500]
    for name, codec in (("a.mkv", "ffv1"), ("b.mp4", "libx264")):
        path = write(tmp_path / name, n=8, codec=codec, pixels="yuv444p", times=times, rate=25)
        images, seconds = media.video_frames(path)
        assert seconds == pytest.approx([t / 1000 for t in times], abs=2e-3) and numbers(images) == list(range(8))
        images, seconds = media.video_frames(path, fps=1)
        assert numbers(images) == [0, 4, 5, 6, 7], "frames nearest to 0, 1, 2, 3 s, and the last"
        assert seconds == pytest.approx([0, 1, 1.04, 3, 3.5], abs=2e-3)


@pytest.mark.parametrize("size", [(33, 57), (17, 9), (29, 28)], ids=str)
def test_odd_sizes(tmp_path, size):
    images, _ = media.video_frames(write(tmp_path / "a.mkv", size=size, codec="ffv1", pixels="yuv444p"), count=2)
    assert [image.size for image in images] == [size, size]


@pytest.mark.parametrize(
    "rotation, size, white",
    [(0, (64, 48), (0, 0)), (90, (48, 64), (0, -1)), (-90, (48, 64), (-1, 0)), (180, (64, 48), (-1, -1))],
    ids=["upright", "counterclockwise", "clockwise: a phone held upright", "upside down"],
)
def test_rotation_in_the_metadata_is_applied(tmp_path, rotation, size, white):
    image = media.video_frames(write(tmp_path / "a.mp4", rotation=rotation), count=1)[0][0]
    assert image.size == size
    corners = {corner: image.getpixel((corner[0] % image.width, corner[1] % image.height))[0] for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1))}
    assert max(corners, key=corners.get) == white, "the white corner went where the turn takes it"


def test_pixels_are_bounded_and_shape_is_kept(tmp_path):
    path = write(tmp_path / "a.mp4", size=(320, 240), n=3)
    for limit in (20000, 320 * 240, 50):
        image = media.video_frames(path, count=1, max_pixels=limit)[0][0]
        assert image.width * image.height <= limit and image.width / image.height == pytest.approx(4 / 3, rel=0.15)
    assert image.size != (320, 240) and media.video_frames(path, count=1, max_pixels=320 * 240)[0][0].size == (320, 240)


def cut(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


BIG = (320, 240)
BROKEN = [  # (how the file is made, what the message says)
    ("missing", lambda p: p / "absent.mp4", "absent.mp4: cannot be decoded .*No such file"),
    ("empty", lambda p: (p / "e.mp4").write_bytes(b"") or p / "e.mp4", "cannot be decoded"),
    ("text", lambda p: (p / "t.mp4").write_text("no video " * 99) and p / "t.mp4", "cannot be decoded"),
    ("folder", lambda p: p, "cannot be decoded"),
    ("cut, index at the end", lambda p: cut(write(p / "a.mp4", n=40, size=BIG), 0.3), "cannot be decoded"),
    ("cut, index at the front", lambda p: cut(write(p / "a.mp4", n=40, size=BIG, whole=False), 0.7), "cut off|cannot be decoded"),
    ("cut mkv", lambda p: cut(write(p / "a.mkv", n=40), 0.6), "ends .* s before its header says; is it cut off"),
    ("cut webm", lambda p: cut(write(p / "a.webm", n=40, codec="libvpx-vp9"), 0.5), "is it cut off"),
    ("cut avi", lambda p: cut(write(p / "a.avi", n=40, size=BIG, codec="mpeg4"), 0.6), "of 40 frames; is it cut off"),
    ("zero frames", lambda p: write(p / "z.avi", n=0), "the video has no frames"),
    ("zero frames, so no stream", lambda p: write(p / "z.mp4", n=0), "no video stream"),
    ("sound only", lambda p: sound(p / "s.wav"), "no video stream"),
]


def sound(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        container.mux(stream.encode(silence()))
    return path


def silence():
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
    frame.sample_rate = 8000
    return frame


@pytest.mark.parametrize("make, message", [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_file_that_cannot_be_used_is_a_clear_error(tmp_path, make, message):
    path = make(tmp_path)
    with pytest.raises(RecordError, match=message) as error:
        media.video_frames(path, count=4)
    assert str(path) in str(error.value)


def test_sound_that_lasts_longer_than_the_pictures_is_no_damage(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        pictures, track = container.add_stream("ffv1", rate=10), container.add_stream("pcm_s16le", rate=8000, layout="mono")
        pictures.width, pictures.height, pictures.pix_fmt = 32, 32, "yuv444p"
        for _ in range(5):
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        container.mux(pictures.encode())
        for _ in range(40):  # 4 s
            container.mux(track.encode(silence()))
    assert media.video_frames(path)[1] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


LATE = ["a.mkv", "a.webm", "a.mp4", "a.mov", "a.ts"]


@pytest.mark.parametrize("name", LATE)
def test_a_first_frame_at_ten_seconds_is_no_damage(tmp_path, name):
    """Matroska counts its duration from 0, the others from the first frame; seconds count from the first frame."""
    path = write(tmp_path / name, n=20, codec="libvpx-vp9" if name == "a.webm" else "libx264", times=[10_000 + 100 * i for i in range(20)])
    images, seconds = media.video_frames(path, count=3)
    assert seconds == pytest.approx([0, 1.0, 1.9], abs=5e-3) and numbers(images)[0] == 0


def test_a_file_with_a_late_first_frame_may_be_cut_all_the_same(tmp_path):
    with pytest.raises(RecordError, match="is it cut off"):
        media.video_frames(cut(write(tmp_path / "a.mkv", n=60, size=BIG, times=[10_000 + 100 * i for i in range(60)]), 0.5))


REPEATED = [  # (numbers of the frames that are stored, why); those between them are empty, which means: once more
    ([0, 1, 2, 6, 7, 12], "a camera that left frames out"),
    ([0, 30], "a still scene: one frame for three seconds"),
    ([5, 6, 7], "it begins with empty ones"),
    ([0, 1, 2, 3], "none is repeated"),
]


def avi(path, stored):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for place in stored:
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 + STEP * place, np.uint8), format="rgb24")
            frame.pts, frame.time_base = place, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("stored, why", REPEATED, ids=[r[-1] for r in REPEATED])
def test_repeated_frames_of_an_avi_are_no_damage(tmp_path, stored, why):
    """A whole file is read, whatever number of frames its header counts; the same file cut is refused."""
    path = avi(tmp_path / "a.avi", stored)
    assert len(media.video_frames(path)[0]) == len(stored), why
    more = bytearray(path.read_bytes())
    place = more.index(b"strh") + 8 + 32  # dwLength of the stream: five frames more than are shown, as if it ended with empty ones
    more[place : place + 4] = (int.from_bytes(more[place : place + 4], "little") + 5).to_bytes(4, "little")
    path.write_bytes(more)
    assert len(media.video_frames(path)[0]) == len(stored), "empty frames at the end"
    path.write_bytes(more[:-10])
    with pytest.raises(RecordError, match="cut off|cannot be decoded"):
        media.video_frames(path)


def test_bad_numbers(tmp_path):
    path = write(tmp_path / "a.mp4")
    for arguments in ({"count": 0}, {"fps": 0}, {"fps": -1}, {"max_frames": 0}, {"max_pixels": 0}, {"count": 2, "fps": 1}):
        with pytest.raises(ValueError, match="count|fps|max_"):
            media.video_frames(path, **arguments)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.floats(0.01, 50))
def test_by_fps_no_time_is_far_from_a_chosen_frame(gaps, fps):
    """Any rate: no frame twice, both ends there, and each 1/fps second is served by its nearest frame."""
    times = np.cumsum([0, *gaps]).tolist()
    places = media.every(times, fps, Fraction(1, 1000))
    assert places == sorted(set(places)) and places[0] == 0 and places[-1] == len(times) - 1
    second = 0.0
    while second * 1000 <= times[-1] and second < 200 / fps:
        best = min(abs(t - second * 1000) for t in times)
        assert min(abs(times[i] - second * 1000) for i in places) <= best + 1e-6
        second += 1 / fps


def test_memory_does_not_grow_with_the_video(tmp_path):
    """A child process reads 8 frames of a video of 300 frames, 187 MB decoded; its peak stays near that of a short one."""
    script = (
        "import resource, sys\nfrom data import media\nimages, _ = media.video_frames(sys.argv[1], count=8)\n"
        "print(len(images), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for n in (9, 300):
        path = write(tmp_path / f"{n}.mp4", n=n, size=(480, 432), codec="mpeg4", key_every=50)
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, cwd=ROOT, check=True)
        count, peak = map(int, done.stdout.split())
        assert count == 8
        peaks.append(peak / 1024)
    assert peaks[1] - peaks[0] < 60, f"{peaks} MB"
