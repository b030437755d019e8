"""Frames and clips of a record as images, with the times at which they are shown.

    images, seconds = data.video_frames("clip.mp4", count=8)
    images, seconds = data.video_frames("clip.mp4", fps=2, max_frames=16)

A video is read twice: once for the times of its frames, which decodes nothing, then only what is wanted is decoded, from
the key frame before it. In memory are one frame as it is decoded and the images that are returned.
"""

import bisect
import functools
import os
import sys

import av
import numpy as np
from PIL import Image, ImageOps

from data.files import RecordError

FPS = 2.0  # frames that a record lists without `times` count as so many a second


def open_frames(record, max_frames=8):
    """The record's frames as RGB PIL images in time order; of `videos`, one after the other (see open_clips)."""
    return [image for clip in open_clips(record, max_frames) for image in clip["frames"]]


def open_clips(record, max_frames=8):
    """The record's clips, each {"frames": RGB PIL images in time order, "seconds": floats, when each is shown}.

    `frames` are one clip; without the record's `times` they count as FPS a second. Of a video up to `max_frames` evenly
    spaced frames are taken, and seconds count from the file's first frame; `videos` are a clip each, with its share of
    `max_frames`. `span` names the first and the last frame of a video that count, from 0.
    """
    if record.get("frames"):
        frames = [enlarge(open_picture(path)) for path in record["frames"]]
        seconds = record.get("times") or [place / FPS for place in range(len(frames))]
        return [{"frames": frames, "seconds": [float(time) for time in seconds]}]
    videos = record.get("videos") or [record["video"]] if record.get("video") or record.get("videos") else []
    return [read_clip(path, max(max_frames // len(videos), 1), record.get("span")) for path in videos]


class BadPicture(Exception):
    """A file that is no single picture; the message is the detail, `reason` and `remedy` are said around it."""

    def __init__(self, reason, detail, remedy="copy it again"):
        super().__init__(detail)
        self.reason, self.remedy = reason, remedy


def open_picture(path):
    """The picture as an RGB image (see read_picture); raises RecordError with the path and a remedy."""
    try:
        return read_picture(path)[0]
    except BadPicture as bad:
        raise RecordError(f"{path}: {bad.reason} as an image ({bad}); {bad.remedy}, or leave its rows out") from bad


def read_picture(file):
    """(RGB image, format) of a path or stream: upright as its EXIF data asks, transparent parts on white, 16 bits made 8.

    Raises BadPicture for what cannot be read, is larger than Pillow deems safe (179 million pixels), carries more compressed
    text or profile than it deems safe, has several frames (GIF, WebP, APNG; a clip's frames are files), or whose values have
    no known range. A photograph with a preview beside it (MPO) is one picture.
    """
    try:
        with Image.open(file) as image:
            if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
                detail, remedy = f"{image.n_frames} frames in a {image.format}", "save its frames as files, or make it a video"
                raise BadPicture("is animated and cannot be opened", detail, remedy)
            image.load()
            return flat(ImageOps.exif_transpose(image)), image.format
    except Image.DecompressionBombError as error:
        raise BadPicture("is too large to be opened", error, "make it smaller") from error
    except ValueError as error:  # Pillow's guards against compressed text and profiles
        raise BadPicture("has too much text or profile to be opened", error, "save it without these") from error
    except (OSError, SyntaxError) as error:  # a cut file's own message names no file
        raise BadPicture("cannot be opened", error) from error


def flat(image):
    """The image as RGB: 16-bit grey scaled to 8 bits, transparency laid on white.

    >>> flat(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0)), flat(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0))
    ((255, 255, 255), (255, 255, 255))
    """
    if image.mode[0] in "IF":
        values = np.asarray(image)
        if values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535:
            raise BadPicture("has values of no known range", f"{values.min()} to {values.max()}", "save it with 8 bits")
        note_once("16-bit grey pictures are scaled to 8 bits (65535 becomes 255)")
        image = Image.fromarray((values // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


@functools.cache
def note_once(text):
    """Say it on stderr, the first time only."""
    print(f"note: {text}", file=sys.stderr)


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
    """A clip of `count` evenly spaced frames of a video (video_frames), first and last included; of all where there are fewer."""
    images, seconds = video_frames(path, count=count, max_frames=count, span=span)
    return {"frames": [enlarge(image) for image in images], "seconds": seconds}


QUARTER_TURNS = {1: Image.Transpose.ROTATE_90, 2: Image.Transpose.ROTATE_180, 3: Image.Transpose.ROTATE_270}
SLACK = 0.5  # seconds by which a whole file may fall short of the duration in its header


def video_frames(path, count=None, fps=None, max_frames=64, max_pixels=1024 * 1024, span=None):
    """(images, timestamps): RGB PIL images in time order, upright, and seconds since the first frame (floats).

    `count` takes so many frames, evenly by number; `fps` those nearest to every 1/fps seconds (frames that last longer
    are not repeated); neither takes all. First and last frame are always among them, except where one is asked for (the
    first). A clip with fewer frames gives those it has. Where more than `max_frames` were chosen, they are thinned
    evenly. Images of more than `max_pixels` are made smaller, their shape kept. `span` (first, last) leaves only the frames
    of these numbers, counted from 0; seconds still count from the file's first frame.
    Raises ValueError for numbers below 1 or both `count` and `fps`, RecordError (with path and remedy) for a file that
    is missing, cut off, no video, or without frames.
    """
    if count is not None and fps is not None:
        raise ValueError("give count or fps, not both")
    for name, value in (("count", count), ("max_frames", max_frames), ("max_pixels", max_pixels)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if fps is not None and not fps > 0:
        raise ValueError(f"fps must be above 0, got {fps}")
    try:
        times, base, keys = read_times(path)
        first, last = span or (0, len(times) - 1)
        if not 0 <= first <= last < len(times):
            raise RecordError(f"{path}: its record speaks of frames {first} to {last}, the video has {len(times)} frames")
        shown = times[first : last + 1]
        places = [first + i for i in (every(shown, fps, base) if fps else range(len(shown)))]
        places = [places[i] for i in evenly(len(places), min(count or len(places), max_frames))]
        found = decode(path, times, places, keys, max_pixels)
        found = found or decode(path, times, places, None, max_pixels)
    except (av.error.FFmpegError, OSError) as error:
        raise RecordError(f"{path}: cannot be decoded as a video ({error}); copy it again, or leave its rows out") from error
    if not found:
        raise RecordError(f"{path}: some of its {len(times)} frames cannot be decoded; is the file damaged? Copy it again")
    return found, [float((times[i] - times[0]) * base) for i in places]


def evenly(length, count):
    """`count` of `length` places, evenly spaced, first and last included; all where there are not more.

    >>> evenly(10, 4), evenly(3, 8), evenly(5, 1)
    ([0, 3, 6, 9], [0, 1, 2], [0])
    """
    count = min(count, length)
    return [round(i * (length - 1) / max(count - 1, 1)) for i in range(count)]


def every(times, fps, base):
    """Places of the frames nearest to each 1/fps seconds, and of the last frame. `times` rise, in units of `base` seconds.

    >>> every([0, 1, 2, 3, 4, 40], 0.25, 1)  # nothing new is shown from 4 on: no frame comes twice
    [0, 4, 5]
    """
    chosen = {0, len(times) - 1}
    for step in range(int((times[-1] - times[0]) * base * fps) + 1):
        wanted = times[0] + step / (fps * base)
        after = min(bisect.bisect_left(times, wanted), len(times) - 1)
        before = max(after - 1, 0)
        chosen.add(before if wanted - times[before] <= times[after] - wanted else after)
    return sorted(chosen)


def picture_stream(container, path):
    """The first video stream that is no cover picture; raises RecordError where there is none."""
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:
            return stream
    raise RecordError(f"{path}: holds no video stream; is it cut off, or no video?")


def read_times(path):
    """(times, base, keys) of a file: when its frames are shown, rising, in units of `base` seconds, and the key frames'.

    Raises RecordError where there is no frame, a frame has no time, or the file ends before its header says.
    """
    times, keys, end = [], [], None
    with av.open(str(path)) as container:
        stream = picture_stream(container, path)
        for packet in container.demux():
            shown = packet.dts if packet.pts is None else packet.pts
            if shown is not None:  # of any stream: sound may last longer than the pictures
                stops = (shown + (packet.duration or 0)) * packet.time_base
                end = stops if end is None else max(end, stops)
            if packet.stream.index != stream.index or not packet.size or packet.is_discard:
                continue
            if shown is None:
                raise RecordError(f"{path}: its frames have no times; put it into a container that has, e.g. mp4")
            times.append(shown)
            if packet.is_keyframe:
                keys.append(shown)
        times.sort()
        if not times:
            raise RecordError(f"{path}: the video has no frames; record it again, or leave its rows out")
        check_whole(container, stream, times, end, path)
        return times, stream.time_base, sorted(keys)


def check_whole(container, stream, times, end, path):
    """Raise RecordError where the file holds clearly less than its header promises.

    Frames are counted only in AVI, whose duration is guessed from the file's size; an mp4 that was trimmed without being
    encoded again counts frames that it does not show. In AVI a time is a frame's number: repeated frames are empty there, and
    are counted without being shown.
    """
    if container.format.name == "avi" and riff_is_whole(path):
        return
    pause = max((after - before for before, after in zip(times, times[1:])), default=0) * stream.time_base
    start = (container.start_time or 0) / av.time_base
    if "matroska" in container.format.name:
        start = min(start, 0)  # its duration counts from 0, wherever the first frame stands
    short = (container.duration or 0) / av.time_base - (end - start)
    if short > SLACK + pause:
        raise RecordError(f"{path}: ends {float(short):.1f} s before its header says; is it cut off? Copy it again")
    if container.format.name == "avi" and times[-1] < stream.frames - 1:
        raise RecordError(f"{path}: holds {len(times)} of {stream.frames} frames; is it cut off? Copy it again")


def riff_is_whole(path):
    """Whether an AVI ends where its header says; beyond 1 GB it has several parts, and the first says nothing of the others."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8)[4:], "little")
    return os.path.getsize(path) - 8 - size in (0, 1)


def decode(path, times, places, keys, max_pixels):
    """The images at `places`, or None where one of them was not met; without `keys` frames are counted from the start.

    Counting serves files whose decoder gives other times than the container.
    """
    images, number, reached = [], -1, None
    with av.open(str(path)) as container:
        stream = picture_stream(container, path)
        stream.thread_type = "AUTO"
        decoder = container.decode(stream)
        for place in places:
            if keys:
                key = keys[max(bisect.bisect_right(keys, times[place]) - 1, 0)]
                if reached is not None and reached < key:  # else the frame is nearer than a jump
                    container.seek(key, stream=stream)
                    decoder = container.decode(stream)
            for frame in decoder:
                number, reached = number + 1, frame.pts
                if keys and (reached is None or reached > times[place]):
                    return None
                if (reached == times[place]) if keys else (number == place):
                    images.append(upright(frame, max_pixels))
                    break
            else:
                return None
    return images


def upright(frame, max_pixels):
    """An RGB image of a decoded frame: turned as the file's metadata asks, made smaller where it is too large."""
    image = frame.to_image().convert("RGB")
    turns = round(frame.rotation / 90) % 4  # counterclockwise
    return shrink(image.transpose(QUARTER_TURNS[turns]) if turns else image, max_pixels)
