"""Records of questions and pairs: reading, checking, frames, and the data set that the trainers read.

A record is one JSON line (design: `id, suite, question, options, frames | video, answer`, and for a pair
`response_1, response_2, preference, source_1, source_2`). A bad record stops the run with its file, line and field;
nothing is dropped in silence.
"""

import fcntl
import json
import math
import os
from array import array
from pathlib import Path

import datasets
from PIL import Image

import prompts
import rewards

TEXT_FIELDS = {"id": str, "suite": str, "question": str, "answer": str}
MEDIA = ("frames", "video", "videos")
FPS = 2.0  # frames that a record lists without `times` count as so many a second
PAIR_FIELDS = {"response_1": str, "response_2": str, "source_1": str, "source_2": str}


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


def check_record(record, where, pair=False, answered=True):
    """Raise RecordError unless `record` is a whole question (or pair). `where` is "file:line" for the message.

    With `answered` False a pair's answer may be null, as in a judge benchmark that knows only which response is better.
    """
    unanswered = pair and not answered and record.get("answer") is None
    for field, kind in (TEXT_FIELDS | PAIR_FIELDS if pair else TEXT_FIELDS).items():
        value = record.get(field)
        if field == "answer" and unanswered:
            continue
        if not isinstance(value, kind) or not value.strip():
            raise RecordError(f"{where}: field '{field}' must be a non-empty string, got {value!r}")
    options = record.get("options")
    if options is not None and not (
        isinstance(options, dict) and options and all(isinstance(text, str) for text in options.values())
    ):
        raise RecordError(f"{where}: field 'options' must be null or letters with texts, got {options!r}")
    video = record.get("video")
    for field in ("frames", "videos"):
        paths = record.get(field)
        if paths is not None and not (isinstance(paths, list) and all(isinstance(path, str) for path in paths)):
            raise RecordError(f"{where}: field '{field}' must be a list of paths, got {paths!r}")
    if video is not None and not isinstance(video, str):
        raise RecordError(f"{where}: field 'video' must be a path, got {video!r}")
    check_times(record, where)
    if all(record.get(field) is None for field in MEDIA):
        raise RecordError(f"{where}: needs 'frames' (a list of image paths, may be empty), 'video' (a path) or 'videos'")
    if pair and (type(record.get("preference")) is not int or record["preference"] not in (1, 2)):
        raise RecordError(f"{where}: field 'preference' must be 1 or 2, got {record.get('preference')!r}")
    if unanswered:
        return
    try:
        rewards.check_answer(record["answer"], options)
    except ValueError as error:
        raise RecordError(f"{where}: field 'answer': {error}") from error


def check_times(record, where):
    """Raise RecordError unless `times`, where a record has them, are rising numbers of seconds, one for each of its frames."""
    times = record.get("times")
    if times is None:
        return
    numbers = isinstance(times, list) and all(type(time) in (int, float) and math.isfinite(time) for time in times)
    rising = numbers and all(before < after for before, after in zip(times, times[1:]))
    if not rising or len(times) != len(record.get("frames") or []):
        raise RecordError(f"{where}: field 'times' must be rising seconds, one for each of 'frames', got {times!r}")


def with_paths(record, folder, where=None):
    """The record with its frames and videos as paths from its file's folder; with `where`, one that is absent is an error."""
    for field in MEDIA:
        if record.get(field):
            single = isinstance(record[field], str)
            files = [Path(folder) / name for name in ([record[field]] if single else record[field])]
            missing = [str(file) for file in files if not file.is_file()] if where else []
            if missing:
                raise RecordError(f"{where}: field '{field}': no such file {missing[0]}")
            record[field] = str(files[0]) if single else [str(file) for file in files]
    return record


def checked_lines(path, pair=False, answered=True):
    """Yield (place in bytes, record) of every line, checked, its paths made absolute; RecordError on the first bad one."""
    path, seen = Path(path), {}
    for number, place, record in read_lines(path):
        where = f"{path}:{number}"
        check_record(record, where, pair, answered)
        if record["id"] in seen:
            raise RecordError(f"{where}: field 'id': {record['id']!r} stands already in line {seen[record['id']]}")
        seen[record["id"]] = number
        yield place, with_paths(record, path.parent, where)
    if not seen:
        raise RecordError(f"{path}: no records; a training or evaluation file needs at least one line")


class RecordFile:
    """The records of a JSONL file, checked once and read again one at a time: memory holds an id and a place for each.

    records[3] is the fourth record, records.ids the ids in the order of the file. Raises RecordError as load_records does.
    """

    def __init__(self, path, pair=False, answered=True):
        self.path, self.ids, self.places = Path(path), [], array("q")
        for place, record in checked_lines(path, pair, answered):
            self.ids.append(record["id"])
            self.places.append(place)
        print(f"{path}: read {len(self)}, kept {len(self)}, rejected 0", flush=True)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        with self.path.open("rb") as stream:
            stream.seek(self.places[index])
            record = read_object(stream.readline(), f"{self.path}, record {index + 1}")
        if record.get("id") != self.ids[index]:
            raise RecordError(f"{self.path}: changed while it was read; run again")
        return with_paths(record, self.path.parent)


def load_records(path, pair=False, limit=None):
    """Records of a JSONL file, checked, with frame and video paths made absolute against the file's folder.

    Prints how many were read and kept. Raises RecordError on the first bad record, a missing file of a record, or an
    id that occurs twice.
    """
    records = []
    for _, record in checked_lines(path, pair):
        records.append(record)
        if limit and len(records) == limit:
            break
    print(f"{path}: read {len(records)}, kept {len(records)}, rejected 0", flush=True)
    return records


def open_frames(record, max_frames=8):
    """The record's frames as RGB PIL images in time order; of `videos`, one after the other (see open_clips)."""
    return [image for clip in open_clips(record, max_frames) for image in clip["frames"]]


def open_clips(record, max_frames=8):
    """The record's clips, each {"frames": RGB PIL images in time order, "seconds": floats, when each is shown}.

    `frames` are one clip; without the record's `times` they count as FPS a second. Of a video up to `max_frames` evenly
    spaced frames are taken, and seconds count from the file's first frame; `videos` are a clip each, with its share of
    `max_frames`. `span` names the first and the last frame of a video that count, from 0.
    """
    images = []
    for frame in record.get("frames") or []:
        try:
            with Image.open(frame) as image:
                images.append(image.convert("RGB"))
        except (OSError, SyntaxError) as error:  # a cut file's own message names no file
            raise RecordError(f"{frame}: cannot be opened as an image ({error}); copy it again, or leave its rows out") from error
    if images:
        seconds = record.get("times") or [place / FPS for place in range(len(images))]
        return [{"frames": [enlarge(image) for image in images], "seconds": [float(time) for time in seconds]}]
    videos = record.get("videos") or [record["video"]] if record.get("video") or record.get("videos") else []
    return [read_clip(path, max(max_frames // len(videos), 1), record.get("span")) for path in videos]


def enlarge(image, least=28):
    """The image with its shorter side at least `least` pixels (Qwen2.5-VL refuses less than one merged patch, 28 x 28).

    >>> enlarge(Image.new("RGB", (20, 10))).size, enlarge(Image.new("RGB", (30, 40))).size
    ((56, 28), (30, 40))
    """
    if min(image.size) >= least:
        return image
    scale = least / min(image.size)
    return image.resize([max(least, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)


def shrink(image, most):
    """The image with at most so many pixels, its shape kept; as it is where `most` is None.

    >>> shrink(Image.new("RGB", (40, 20)), 200).size, shrink(Image.new("RGB", (40, 20)), 800).size
    ((20, 10), (40, 20))
    """
    scale = (most / (image.width * image.height)) ** 0.5 if most else 1
    return image.resize([max(1, int(side * scale)) for side in image.size], Image.Resampling.BICUBIC) if scale < 1 else image


def read_clip(path, count, span=None):
    """A clip of `count` evenly spaced frames of a video (video.frames), first and last included; of all where there are fewer."""
    import video

    images, seconds = video.frames(path, count=count, max_frames=count, span=span)
    return {"frames": [enlarge(image) for image in images], "seconds": seconds}


def record_prompt(record, order, n_frames, variant="self_ref", n_videos=0):
    """Chat messages of a record: the critic's with the two responses in this order, "12" or "21"; None, the question's."""
    if order is None:
        return prompts.question_prompt(record["question"], record.get("options"), n_frames, n_videos)
    shown = [record["response_" + number] for number in order]
    return prompts.critic_prompt(record["question"], *shown, record.get("options"), n_frames, variant, n_videos)


def training_dataset(records, variant="self_ref", max_frames=8, video_input="frames"):
    """A datasets.Dataset for TRL's GRPOTrainer: columns prompt, images, answer, options, preference, self_reference, id.

    Frames are opened and prompts built when a row is read, so memory does not grow with the data set. With `video_input`
    "native" a column `videos` stands in place of `images`: a row's clips (open_clips), one video place in the prompt for each
    (native_video.py).
    """
    lines = datasets.Dataset.from_dict({"record": [json.dumps(record) for record in records]})

    def build(batch):
        rows = [json.loads(line) for line in batch["record"]]
        orders = [None if row.get("preference") is None else "12" for row in rows]
        if video_input == "native":
            shown = [open_clips(row, max_frames) for row in rows]
            asked = [record_prompt(row, order, 0, variant, len(clips)) for row, order, clips in zip(rows, orders, shown)]
        else:
            shown = [open_frames(row, max_frames) for row in rows]
            asked = [record_prompt(row, order, len(images), variant) for row, order, images in zip(rows, orders, shown)]
        return {
            "prompt": asked,
            "videos" if video_input == "native" else "images": shown,
            "answer": [row["answer"] for row in rows],
            "options": [row.get("options") for row in rows],
            "preference": [row.get("preference") for row in rows],
            "self_reference": [variant != "no_self_ref" for _ in rows],
            "id": [row["id"] for row in rows],
        }

    return lines.with_transform(build)
