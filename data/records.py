"""Records of questions and pairs: reading, checking, prompts, and the data set that the trainers read.

A record is one JSON line (design: `id, suite, question, options, frames | video, answer`, and for a pair
`response_1, response_2, preference, source_1, source_2`). A bad record stops the run with its file, line and field;
nothing is dropped in silence.
"""

import json
import math
import os
from array import array
from pathlib import Path

import prompts
import rewards
from data.files import RecordError, read_lines, read_object
from data.media import open_clips, open_frames

TEXT_FIELDS = {"id": str, "suite": str, "question": str, "answer": str}
MEDIA = ("frames", "video", "videos")

PAIR_FIELDS = {"response_1": str, "response_2": str, "source_1": str, "source_2": str}


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
    options = given = record.get("options")
    try:
        options = rewards.read_options(given)
    except ValueError:
        given = {}
    if given == {} or isinstance(given, dict) and not all(isinstance(text, str | None) for text in given.values()):
        raise RecordError(f"{where}: field 'options' must be null or letters with texts, got {record['options']!r}")
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
    """The record with its frames and videos as paths from its file's folder, and its options without absent letters (Arrow).

    With `where`, a file that is absent is an error.
    """
    if record.get("options"):
        record["options"] = rewards.read_options(record["options"])
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
    (training/video.py).
    """
    import datasets  # here, since it takes a second and few need it

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


def embedded(kind, split):
    """Path of an embedded JSONL file of physworld's (`kind`: questions or pairs), made where it is absent."""
    from physworld import dataset

    return {"questions": dataset.questions_file, "pairs": dataset.pairs_file}[kind](split)


def with_relative_paths(record, folder):
    """A copy of the record whose frames or videos are paths relative to `folder`: what a file there has to hold."""
    paths = {name: record[name] for name in MEDIA if record.get(name)}
    return record | {
        name: os.path.relpath(given, folder) if isinstance(given, str) else [os.path.relpath(path, folder) for path in given]
        for name, given in paths.items()
    }
