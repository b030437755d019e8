"""The front door of every command: options from dataclasses, --help at once, one line for a mistake, one for an error.

Nothing here imports torch: a script parses first and imports what is heavy afterwards.
"""

import argparse
import dataclasses
import difflib
import linecache
import os
import re
import sys
import types
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEBUG = "STJ_DEBUG=1 in the environment shows where an error comes from."
MADE_BY = {  # folders of models that are made here
    "runs/stage1": "accelerate launch train_stage1.py",
    "runs/stage2": "accelerate launch train_stage2.py",
    "runs/dpo": "python train_dpo.py train",
    "runs/demo": "make demo",
}


# --- Options ----------------------------------------------------------------------------------------------------------


class Help(argparse.RawDescriptionHelpFormatter):
    """Defaults behind the help texts that do not say them, and a percent sign is a percent sign."""

    def _expand_help(self, action):
        text = (action.help or "").replace("%%", "%")
        told = "default" in text or action.default is None and "left out" in text.lower()
        if told or action.default is argparse.SUPPRESS or not action.option_strings:
            return text
        return f"{text} (required)" if action.required else f"{text} (default: {shown(action.default)})"


def shown(value):
    """A default as it is typed.

    >>> shown(None), shown(["pivot", 2])
    ('none', 'pivot 2')
    """
    return " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value


class Front:
    """For an ArgumentParser: a mistake is one line and exit code 2; an unknown option is told the nearest known one."""

    def parse_known_args(self, args=None, namespace=None):
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            words = [self.known(word) for word in words]
        elif not words:
            self.print_help()
            self.exit()
        return super().parse_known_args(words, namespace)

    def known(self, word):
        """A word of the command line, an option's name spelled with underscores; exits where there is no such option."""
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--\w[\w-]*", name) or name in self._option_string_actions:
            return word
        underscored = "--" + name[2:].replace("-", "_")
        if underscored in self._option_string_actions:
            return underscored + equals + value
        self.error(f"unknown option {name}{nearest(name, self._option_string_actions)}")

    def error(self, message):
        if os.environ.get("RANK", "0") == "0":  # every process of a launcher reads the same command line
            print(f"{self.prog}: error: {message}", file=sys.stderr)
        self.exit(2)


class Parser(Front, argparse.ArgumentParser):
    """ArgumentParser with the manners of this file."""

    def __init__(self, **settings):
        settings = {"formatter_class": Help, "allow_abbrev": False, "epilog": DEBUG} | settings
        super().__init__(**settings)


def nearest(name, known):
    """A hint at the known name that is most like `name`, or nothing.

    >>> nearest("--alpha_ps", ["--alpha_sp", "--limit"]), nearest("--x", ["--limit"])
    ('; did you mean --alpha_sp?', '')
    """
    names, name = {other.lstrip("-"): other for other in known}, name.lstrip("-")
    found = difflib.get_close_matches(name, names)
    found.sort(key=lambda other: sorted(other) != sorted(name))  # two letters changed over come first
    return f"; did you mean {names[found[0]]}?" if found else ""


def add_options(parser, kinds, defaults=None):
    """Give `parser` an option for each field of the dataclasses `kinds`, with their help and default (or that of `defaults`)."""
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            settings = {"help": field.metadata["help"], **typed(hints[field.name])}
            if field.default_factory is not dataclasses.MISSING:
                settings["default"] = field.default_factory()
            elif field.default is not dataclasses.MISSING:
                settings["default"] = (defaults or {}).get(field.name, field.default)
            parser.add_argument(f"--{field.name}", required="default" not in settings, **settings)


def typed(hint):
    """What argparse is told of a field's type: X, X | None, list[X], Literal or bool (--flag, or --flag false)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        [hint] = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    if typing.get_origin(hint) is list:
        return {"type": typing.get_args(hint)[0], "nargs": "+"}
    return {"type": truth, "nargs": "?", "const": True, "metavar": "BOOL"} if hint is bool else {"type": hint}


def truth(word):
    """The bool that a word of the command line says."""
    said = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(word.lower())
    if said is None:
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return said


def made(found, kinds):
    """An instance of each dataclass, of what was parsed."""
    return [kind(**{field.name: getattr(found, field.name) for field in dataclasses.fields(kind)}) for kind in kinds]


def parse(doc, *kinds, argv=None):
    """The command line as an instance of each dataclass; `doc` is what --help says first."""
    parser = Parser(description=doc, usage="%(prog)s [options]")
    add_options(parser, kinds)
    return made(parser.parse_args(argv), kinds)


def steps_parser(doc, steps, epilog=DEBUG, defaults=None):
    """The parser of a command with steps, {name: (what it does, in a line, and its dataclasses)}; bare, it prints its help."""
    parser = Parser(description=doc, epilog=f"STEP --help lists the options of a step. {DEBUG}")
    adding = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, (line, kinds) in steps.items():
        usage = f"{parser.prog} {name} [options]"
        add_options(adding.add_parser(name, help=line, description=line, usage=usage, epilog=epilog), kinds, defaults)
    return parser


def parse_step(doc, steps, argv=None):
    """(step, instances of its dataclasses) of the command line; see steps_parser."""
    found = steps_parser(doc, steps).parse_args(argv)
    return found.step, made(found, steps[found.step][1])


# --- Errors -----------------------------------------------------------------------------------------------------------


def run(main):
    """End with main()'s exit code; an error that the user can mend is one line and code 1, a bug keeps its traceback."""
    try:
        code = main()
    except SystemExit as error:
        code = f"error: {error.code}" if isinstance(error.code, str) else error.code
    except (ValueError, OSError) as error:
        if os.environ.get("STJ_DEBUG") == "1" or not mendable(error):
            raise
        file = getattr(error, "filename", None)
        code = f"error: {file}: {error.strerror}" if file else f"error: {error}"
    sys.exit(code)


def mendable(error):
    """Whether it is about what the user gave: a file, or a ValueError that one of our checks raised, not a bug that ran
    into one (int("x"), zip of unequal lengths): its last line, in this repository, is a raise."""
    if isinstance(error, OSError):
        return True
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    file = Path(last.tb_frame.f_code.co_filename)
    ours = file.is_relative_to(ROOT) and "site-packages" not in file.parts
    return ours and linecache.getline(str(file), last.tb_lineno).lstrip().startswith("raise ")


# --- Models on the command line ---------------------------------------------------------------------------------------


def local_path(name):
    """`name` where it exists, else the same below the repository where that exists, else `name` (a hub id).

    >>> local_path("Qwen/Qwen2.5-VL-7B-Instruct")
    'Qwen/Qwen2.5-VL-7B-Instruct'
    """
    return str(ROOT / name) if not Path(name).exists() and (ROOT / name).exists() else str(name)


def local_model(name):
    """`name`, a model's folder or hub id, as it is; ValueError where it is the path of a folder that is absent.

    A path begins with runs/, ./, ../, / or a folder that is there; any other name/name is a hub id. The message names the
    command that makes the folder, where one does.
    """
    path = Path(name)
    below = len(path.parts) > 1 and Path(path.parts[0]).is_dir()
    if path.exists() or not (below or str(name).startswith(("runs/", "./", "../", "/"))):
        return name
    place = os.path.normpath(name).removeprefix(f"{ROOT}/")
    made = next((made for folder, made in MADE_BY.items() if f"{place}/".startswith(f"{folder}/")), None)
    remedy = f"make it with `{made}`, or give another model" if made else "give a model's folder that is there, or a hub id"
    raise ValueError(f"{name}: no such folder; {remedy}")
