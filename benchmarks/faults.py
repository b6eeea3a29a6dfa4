"""Bad inputs, hostile files, damaged stores and kills: what becomes of each, in one table.

    python benchmarks/faults.py [--quick] [--only CATEGORY ...] [--seed N]

Every call runs in a child process, below limits of time and memory, in a folder with canary files
around a finished store. Refused clearly: one line that our own code raised (an exit status of 2 or
1 with one line), OSErrors that name their file. Wrong: accepted although bad, refused although
good, or other numbers than those of an intact store. Exit status 1 where anything but "refused" and
"accepted" happened. --quick: a sample drawn by --seed.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import linecache
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

for name in ("OMP_NUM_THREADS", "LOKY_MAX_CPU_COUNT"):
    os.environ[name] = "1"
os.environ |= {"MIA_NB_MODE": "batch", "MIA_NB_MAX_GB": "0.5"}

import filelock  # noqa: E402
from common import options, report, table  # noqa: E402

import mia_nb  # noqa: E402

OURS = str(Path(mia_nb.__file__).parent)
GOOD, BAD = ("refused", "accepted"), ("traceback", "hang", "lost", "outside", "wrong")
SCRATCH = ("tmp", "cache", "data")  # may be written to, beside the results
REMADE = ("manifest.jsonl", "report.html", "status.json", "provenance.json")
MEMORY, BATCH = 3 << 30, 25  # bytes beyond the parent's, calls in a child
Call = Callable[[], object]


class Case(NamedTuple):
    """A call, and what should become of it: refused, accepted, told (accepted, with a warning),
    any, or its result.
    """

    category: str
    words: str
    call: Call
    expect: object = "any"
    damage: Callable[[], object] | None = None  # done to the store before
    seconds: float = 20.0  # of CPU time; ten times as much on the clock
    removes: bool = False  # may take finished results away
    reads: bool = False  # does nothing but read: may share a child with the call before it


class Refused(Exception):
    """A command ended with a clear refusal."""


class Started(BaseException):
    """A kernel would have been started: the words of the command line were accepted."""


def command(*argv: str, wrong: bool = False) -> Call:
    """A call of `mia-nb` that is judged by its exit status and by what it prints."""
    from mia_nb.cli import main

    def call():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(list(argv))
            except SystemExit as error:
                status = error.code
        said = err.getvalue().strip()
        if status == 1 and "WRONG" in out.getvalue():  # the doctor's answer
            raise Refused(out.getvalue().partition("WRONG: ")[2].splitlines()[0])
        # notices come before
        clean, last = "Traceback" not in said + out.getvalue(), said.rpartition("\n")[2]
        if status in (1, 2) and clean and last.startswith("mia-nb: "):
            raise Refused(last)
        if status not in (0, 3) or not clean:
            raise AssertionError(f"exit status {status}: {said}")
        return out.getvalue()

    return call


def judged(error: BaseException) -> tuple[str, str]:
    """Whether an exception is a refusal: one line that was raised on purpose."""
    text, kind = str(error).strip(), type(error).__name__
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = linecache.getline(last.filename, last.lineno).strip().startswith("raise ")
    ours = ours and last.filename.startswith(OURS)
    clear = isinstance(error, ValueError) and ours
    clear |= isinstance(error, OSError) and (ours or "/" in text)  # it names the file
    clear |= isinstance(error, Refused | filelock.Timeout)
    where = "" if clear else f" at {Path(last.filename).name}:{last.lineno}"
    return (
        "refused" if clear and text and "\n" not in text else "traceback"
    ), f"{kind}: {text}{where}"


def _in_child(cases: list[Case], write: int, place: Path) -> None:
    """Run the calls and write a line (outcome, words, result) about each into the pipe."""
    os.setsid()
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(place)
    os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
    said = os.open(place / "tmp" / "said", os.O_RDWR | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    for case in cases:
        try:
            with warnings.catch_warnings(record=True) as raised:
                warnings.simplefilter("always")
                result = case.call()
            warned = "; ".join(str(w.message) for w in raised if w.category is UserWarning)
            answer = ("accepted", warned, result if isinstance(result, str) else "")
        except Started:
            answer = ("accepted", "a kernel would start", "")
        except BaseException as error:
            answer = (*judged(error), "")
        os.write(write, json.dumps([part[:1000] for part in answer]).encode() + b"\n")
    os._exit(0)


def contained(cases: list[Case], place: Path) -> list[tuple[str, str, str]]:
    """(outcome, words, result) of the calls in a child, up to the one at which it ends or is ended
    for working too long.

    A call hangs when it has used its CPU time, which does not grow with what else the machine does,
    or ten times as long has passed on the clock: a child that does nothing for some seconds may
    just wait for its turn.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        _in_child(cases, write, place)
    os.close(write)
    os.set_blocking(read, False)
    first = begun = time.monotonic()
    work_before = 0.0  # CPU seconds of the calls that have ended
    answers = b""
    ended = 0
    hang = None
    while not ended:
        time.sleep(0.003 if time.monotonic() - first < 0.3 else 0.03)
        now = time.monotonic()
        work = _cpu_seconds(child)
        answered = answers.count(b"\n")
        ended, status = os.waitpid(child, os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            answers += os.read(read, 1 << 20)
        if answers.count(b"\n") > answered:
            begun = now
            work_before = work
        limit = cases[min(answered, len(cases) - 1)].seconds
        if not ended and (work - work_before > limit or now - begun > 10 * limit):
            hang = "hang", f"{work - work_before:.0f} s of work in {now - begun:.0f} s", ""
            os.killpg(child, signal.SIGKILL)
            ended, status = os.waitpid(child, 0)
    os.close(read)
    found = [tuple(json.loads(line)) for line in answers.splitlines()]
    if len(found) < len(cases):
        found.append(hang or ("traceback", f"ended with wait status {status} and no word", ""))
    return found


def _cpu_seconds(process: int) -> float:
    """What a process, maybe one that has ended and was not waited for, has worked so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seen(top: Path) -> dict[str, str]:
    """{path below top: type and content} without following links."""
    found = {}
    begin = len(f"{top}/")
    for folder, folders, files in os.walk(top):
        for path in (f"{folder}/{name}" for name in folders + files):  # a Path takes longer
            mode = os.lstat(path).st_mode
            what = os.readlink(path) if stat.S_ISLNK(mode) else ""
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    what = sha256(file.read()).hexdigest()
            found[path[begin:]] = f"{stat.S_IFMT(mode):o} {what}"
    return found


def harm(before: dict, after: dict, intact: dict, case: Case) -> tuple[str, str] | None:
    """What of the surroundings, or of what was finished and undamaged, is not what it was."""
    for path in sorted(p for p in before.keys() | after if before.get(p) != after.get(p)):
        if path.split("/")[0] not in (*SCRATCH, "results"):
            return "outside", f"{path} was {before.get(path)}, is {after.get(path)}"
        kept = intact.get(path) == before.get(path) and not os.path.basename(path).startswith(".")
        kept = kept and path.startswith("results/") and path in intact and not case.removes
        if kept and (path not in after or os.path.basename(path) not in REMADE):
            return "lost", f"{path} is {'altered' if path in after else 'gone'}"
    return None


def verdict(case: Case, outcome: str, words: str, result: str) -> tuple[str, str]:
    """The outcome against what was expected."""
    expected = case.expect
    if outcome == "accepted" and expected == "refused":
        return "wrong", f"accepted although bad {words}"
    if outcome == "accepted" and expected == "told" and not words:
        return "wrong", "accepted without a word"
    if outcome == "refused" and expected == "accepted":
        return "wrong", f"refused although good: {words}"
    known = ("refused", "accepted", "told", "any")
    if outcome == "accepted" and expected not in known and result != expected:
        return "wrong", "other numbers than before, without a word"
    return outcome, words


class Ground:
    """A folder with a finished store and canaries around it, put back after every case that changed
    it.
    """

    def __init__(self, place: Path):
        self.place, self.copy = place, place.with_name("pristine")
        shutil.copytree(place, self.copy, symlinks=True)
        self.intact = self.now = seen(place)

    def restore(self) -> None:
        for path in sorted(
            p for p in self.now.keys() | self.intact if self.now.get(p) != self.intact.get(p)
        ):
            here, there = self.place / path, self.copy / path
            if here.is_dir() and not here.is_symlink():
                shutil.rmtree(here)
            here.unlink(missing_ok=True)
            if path in self.intact:
                shutil.copytree(there, here) if there.is_dir() else shutil.copy2(there, here)
        self.now = self.intact

    def attempt(self, cases: list[Case]) -> list[tuple[str, str]]:
        """What became of the first cases, at least one: several in one child, alone where one of
        them did harm.
        """
        self.restore()
        if cases[0].damage:
            cases[0].damage()
        before = seen(self.place) if cases[0].damage else self.intact
        found = contained(cases, self.place)
        self.now = seen(self.place)
        done = harm(before, self.now, self.intact, cases[0])
        if done and len(cases) > 1:
            return self.attempt(cases[:1])
        found = [verdict(case, *one) for case, one in zip(cases, found, strict=False)]
        return [done] if done and found[0][0] != "hang" else found


def campaign(cases: list[Case], ground: Ground) -> int:
    """Try all cases, print the table and what failed; the number of failures."""
    counts, failures, left = Counter(), [], cases
    while left:
        alike = [c.damage is left[0].damage and (not c.damage or c.reads) for c in left[1:BATCH]]
        several = [*alike, False].index(False) + 1
        for case, (outcome, words) in zip(left, ground.attempt(left[:several]), strict=False):
            left = left[1:]
            counts[case.category, outcome] += 1
            if outcome in BAD:
                line = " ".join(f"{case.category}: {case.words}: {outcome}, {words}".split())
                failures.append(line.encode("ascii", "backslashreplace").decode()[:300])
                print(failures[-1], file=sys.stderr, flush=True)
    ground.restore()
    rows = []
    for category in (*dict.fromkeys(case.category for case in cases), "all"):
        each = [
            sum(n for (c, o), n in counts.items() if o == outcome and category in (c, "all"))
            for outcome in GOOD + BAD
        ]
        rows.append([category, sum(each), *each])
    table(["category", "tried", "refused clearly", "accepted correctly", *BAD], rows)
    print("\n".join(failures))
    return len(failures)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", metavar="CATEGORY", default=[])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.modules["faults"] = sys.modules[__name__]  # else the two would import another copy of this
    import faults_files
    import faults_inputs
    import faults_stores

    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder, report("Faults", args.quick):
        world = faults_stores.World(Path(folder, "place"), damages=12 if args.quick else 200)
        ground = Ground(world.place)
        gc.freeze()
        makers = faults_inputs.CATEGORIES | faults_files.CATEGORIES | faults_stores.CATEGORIES
        cases = []
        for category, (make, few) in makers.items():
            if not args.only or category in args.only:
                found = [Case(category, *rest) for rest in make(world, rng)]
                found = [case for case in found if case.seconds < 60 or not args.quick]
                count = min(few, len(found)) if args.quick else len(found)
                cases += [found[n] for n in sorted(rng.sample(range(len(found)), count))]
        ground.now = seen(world.place)  # what was expected was found by trying
        failed = campaign(cases, ground)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
