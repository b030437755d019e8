"""Records of questions and pairs, their frames and clips, and the files that hold them: one face for the scripts.

Inside the packages the module itself is imported; `data.video_inputs` (torch), `data.sources`, `data.pairing` and
`data.balance` stand apart.
"""

from data.files import (
    RecordError, commit, content_sha, json_sha, open_lines, open_rows, provenance, read_jsonl, read_lines, read_object,
    read_result, read_rows, short_sha, write_lines, write_result, write_whole,
)  # fmt: skip
from data.media import FPS, enlarge, open_clips, open_frames, shrink, video_frames
from data.records import (
    MEDIA, RecordFile, check_record, checked_lines, embedded, load_records, record_prompt, training_dataset, with_paths,
    with_relative_paths,
)  # fmt: skip

__all__ = [
    "FPS", "MEDIA", "RecordError", "RecordFile", "check_record", "checked_lines", "commit", "content_sha", "embedded",
    "enlarge", "json_sha", "load_records", "open_clips", "open_frames", "open_lines", "open_rows", "provenance", "read_jsonl",
    "read_lines", "read_object", "read_result", "read_rows", "record_prompt", "short_sha", "shrink", "training_dataset",
    "video_frames", "with_paths", "with_relative_paths", "write_lines", "write_result", "write_whole",
]  # fmt: skip
