"""Records of questions and pairs: reading, checking, frames, and the data set that the trainers read.

A record is one JSON line (design: `id, suite, question, options, frames | video, answer`, and for a pair
`response_1, response_2, preference, source_1, source_2`). A bad record stops the run with its file, line and field;
nothing is dropped in silence.
"""

import json
from pathlib import Path

import datasets
from PIL import Image

import prompts
import rewards

TEXT_FIELDS = {"id": str, "suite": str, "question": str, "answer": str}
PAIR_FIELDS = {"response_1": str, "response_2": str, "source_1": str, "source_2": str}


class RecordError(ValueError):
    """A record that cannot be used; the message names file, line, field and remedy."""


def read_jsonl(path):
    """Yield (line number from 1, object) of a JSON-lines file; raises RecordError on a line that is no object."""
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path}: no such file; give a JSONL file of records, or leave --dataset out")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise RecordError(f"{path}:{number}: not JSON ({error}); is the line cut off?") from error
            if not isinstance(record, dict):
                raise RecordError(f"{path}:{number}: expected an object, got {type(record).__name__}")
            yield number, record


def check_record(record, where, pair=False):
    """Raise RecordError unless `record` is a whole question (or pair). `where` is "file:line" for the message."""
    for field, kind in (TEXT_FIELDS | PAIR_FIELDS if pair else TEXT_FIELDS).items():
        value = record.get(field)
        if not isinstance(value, kind) or not value.strip():
            raise RecordError(f"{where}: field '{field}' must be a non-empty string, got {value!r}")
    options = record.get("options")
    if options is not None and not (
        isinstance(options, dict) and options and all(isinstance(text, str) for text in options.values())
    ):
        raise RecordError(f"{where}: field 'options' must be null or letters with texts, got {options!r}")
    frames, video = record.get("frames"), record.get("video")
    if frames is not None and not (isinstance(frames, list) and all(isinstance(frame, str) for frame in frames)):
        raise RecordError(f"{where}: field 'frames' must be a list of paths, got {frames!r}")
    if video is not None and not isinstance(video, str):
        raise RecordError(f"{where}: field 'video' must be a path, got {video!r}")
    if frames is None and video is None:
        raise RecordError(f"{where}: needs 'frames' (a list of image paths, may be empty) or 'video' (a path)")
    if pair and (isinstance(record.get("preference"), bool) or record.get("preference") not in (1, 2)):
        raise RecordError(f"{where}: field 'preference' must be 1 or 2, got {record.get('preference')!r}")
    try:
        rewards.check_answer(record["answer"], options)
    except ValueError as error:
        raise RecordError(f"{where}: field 'answer': {error}") from error


def load_records(path, pair=False, limit=None):
    """Records of a JSONL file, checked, with frame and video paths made absolute against the file's folder.

    Prints how many were read and kept. Raises RecordError on the first bad record, a missing file of a record, or an
    id that occurs twice.
    """
    path, records, seen = Path(path), [], {}
    for number, record in read_jsonl(path):
        where = f"{path}:{number}"
        check_record(record, where, pair)
        if record["id"] in seen:
            raise RecordError(f"{where}: field 'id': {record['id']!r} stands already in line {seen[record['id']]}")
        seen[record["id"]] = number
        for field in ("frames", "video"):
            if record.get(field):
                names = record[field] if field == "frames" else [record[field]]
                files = [path.parent / name for name in names]
                missing = [str(file) for file in files if not file.is_file()]
                if missing:
                    raise RecordError(f"{where}: field '{field}': no such file {missing[0]}")
                record[field] = [str(file) for file in files] if field == "frames" else str(files[0])
        records.append(record)
        if limit and len(records) == limit:
            break
    if not records:
        raise RecordError(f"{path}: no records; a training or evaluation file needs at least one line")
    print(f"{path}: read {len(records)}, kept {len(records)}, rejected 0", flush=True)
    return records


def open_frames(record, max_frames=8):
    """The record's frames as RGB PIL images in time order; of a video, up to `max_frames` evenly spaced ones."""
    if record.get("frames"):
        images = []
        for frame in record["frames"]:
            with Image.open(frame) as image:
                images.append(image.convert("RGB"))
        return images
    return video_frames(record["video"], max_frames) if record.get("video") else []


def video_frames(path, count):
    """`count` evenly spaced frames of a video, first and last included (all of them where there are fewer)."""
    import av

    try:
        with av.open(str(path)) as container:
            images = [frame.to_image() for frame in container.decode(video=0)]
    except (av.error.FFmpegError, IndexError, OSError) as error:
        raise RecordError(f"{path}: cannot be decoded as a video ({error})") from error
    if not images:
        raise RecordError(f"{path}: the video has no frames")
    count = min(count, len(images))
    places = [round(i * (len(images) - 1) / max(count - 1, 1)) for i in range(count)]
    return [images[i].convert("RGB") for i in places]


def record_prompt(record, n_frames, variant="self_ref"):
    """Chat messages of a record: the critic's where it holds two responses, else the question's."""
    if record.get("preference") is None:
        return prompts.question_prompt(record["question"], record.get("options"), n_frames)
    return prompts.critic_prompt(
        record["question"], record["response_1"], record["response_2"], record.get("options"), n_frames, variant
    )


def training_dataset(records, variant="self_ref", max_frames=8):
    """A datasets.Dataset for TRL's GRPOTrainer: columns prompt, images, answer, options, preference, self_reference, id.

    Frames are opened and prompts built when a row is read, so memory does not grow with the data set.
    """
    lines = datasets.Dataset.from_dict({"record": [json.dumps(record) for record in records]})

    def build(batch):
        rows = [json.loads(line) for line in batch["record"]]
        images = [open_frames(row, max_frames) for row in rows]
        return {
            "prompt": [record_prompt(row, len(i), variant) for row, i in zip(rows, images)],
            "images": images,
            "answer": [row["answer"] for row in rows],
            "options": [row.get("options") for row in rows],
            "preference": [row.get("preference") for row in rows],
            "self_reference": [variant != "no_self_ref" for _ in rows],
            "id": [row["id"] for row in rows],
        }

    return lines.with_transform(build)
