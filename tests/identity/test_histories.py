"""Histories of edits: four caches, made of one another, are what plain Python makes of the records, and
compute what an edit affects alone.

A history edits the records of a source with keys, a setting or a constant of a stage, or nothing, and runs the
pipeline in a new process after each edit; some of these are killed and run again, some are two at a time. Each
computation of a sample is a line in a log: its stage, its number and what it is made of. The oracle is `Plain`.

    python -m tests.identity.test_histories FIRST COUNT [NAME ...]

runs histories by seed, and prints the ones that fail; with names of SPARED these, too.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.scale import SEED, scaled, thinned
from tests.kit.systems import Killing, child_environ, ended, in_child

FIRST, ASKED, DRAWS = 6, 8, 9
"""Computations beside those of the fill: of first samples, of samples that are compared, of one that differs."""

SPARED: set[str] = set()
"""What histories leave out: a constant that changes while records only move, or when a refill was killed; settings with
as many items as there are samples; to count the calls of a process that
joins a refill which has begun."""

PIPELINE = """
import json
import os
import sys
import time
import warnings

import torch

import edcache

ONE, TWO, THREE, FOUR = {constants}
IDLE_ONE, IDLE_TWO, IDLE_THREE, IDLE_FOUR = {idle}


def key_of(kind, number):
    if kind == "tuple":
        return "n", (number, b"x")
    return {{"text": f"n{{number}}", "int": number - 5, "bytes": b"\\0%d" % number}}[kind]


# A dict that code changes is state, no constant.
class Run(dict):
    # What is said of a run alone, and makes no sample.

    def __edcache_fingerprint__(self):
        return {{}}


RUN = Run()


def note(stage, number, made_of):
    _ = os.write(RUN["log"], f"{{os.getpgrp()}} {{stage}} {{number}} {{made_of}}\\n".encode())
    time.sleep(RUN["delay"])
    RUN["calls"] += 1
    if RUN["calls"] == RUN["killed_at"]:
        os.kill(os.getpid(), 9)


def sample_of(number, payload, revision, setting):
    note(1, number, (payload, revision))
    if payload == IDLE_ONE:
        raise ValueError
    x = payload * 7 + ONE + 1000 * setting
    return {{"n": number, "x": torch.tensor([x, x + 1]), "label": payload % 3, "group": payload % 5}}


class Listed:
    def __init__(self, rows, kind, setting, folder):
        self.setting, self.kind, self.sizes, self.mean = setting, kind, {sizes}, {mean}
        self._rows = [tuple(row) for row in rows]

    def __len__(self):
        return len(self._rows)

    def sample_key(self, index):
        return key_of(self.kind, self._rows[index][0])

    def sample_version(self, index):
        return self._rows[index][1:]

    def __getitem__(self, index):
        number, payload, revision = self._rows[index]
        return sample_of(number, payload, revision, self.setting)


class Bulk(Listed):
    def sample_keys(self):
        return [key_of(self.kind, row[0]) for row in self._rows]

    def sample_versions(self):
        return [str(row[1:]) for row in self._rows]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Valued:
    def __init__(self, rows, kind, setting, folder):
        self.setting, self.kind = setting, kind
        self.numbers, self.payloads = [row[0] for row in rows], [row[1] for row in rows]

    def __len__(self):
        return len(self.numbers)

    def sample_key(self, index):
        return key_of(self.kind, self.numbers[index])

    def sample_versions(self):
        return self.payloads

    def __getitem__(self, index):
        return sample_of(self.numbers[index], self.payloads[index], 0, self.setting)


class Folder:
    def __init__(self, rows, kind, setting, folder):
        self.setting, self.kind, self.root = setting, kind, folder
        self._numbers = [row[0] for row in rows]

    def __len__(self):
        return len(self._numbers)

    def path(self, index):
        return os.path.join(self.root, f"{{self._numbers[index]}}.txt")

    def sample_key(self, index):
        return key_of(self.kind, self._numbers[index])

    def sample_version(self, index):
        status = os.stat(self.path(index))
        return status.st_mtime_ns, status.st_size

    def __getitem__(self, index):
        with open(self.path(index)) as file:
            payload, revision = map(int, file.read().split())
        return sample_of(self._numbers[index], payload, revision, self.setting)


def doubled(sample):
    note(2, int(sample["n"]), int(sample["x"][0]))
    if int(sample["x"][0]) == IDLE_TWO:
        raise ValueError
    return {{"n": sample["n"], "y": sample["x"] * 2 + TWO}}


def doubled_batch(batch):
    for number, x in zip(batch["n"].tolist(), batch["x"][:, 0].tolist()):
        note(2, number, x)
        if x == IDLE_TWO:
            raise ValueError
    return {{"n": batch["n"], "y": batch["x"] * 2 + TWO}}


def summed(sample):
    note(3, int(sample["n"]), int(sample["y"][0]))
    if int(sample["y"][0]) == IDLE_THREE:
        raise ValueError
    return {{"n": sample["n"], "z": int(sample["y"].sum()) + THREE}}


def grouped(sample):
    note(4, int(sample["group"]), "")
    if sample["group"] == IDLE_FOUR:
        raise ValueError
    return {{"n": sample["group"], "z": sample["group"] * 11 + FOUR}}


def same(sample):
    return sample


SHOWN = {{1: lambda s: s["x"].tolist(), 2: lambda s: s["y"].tolist(), 3: lambda s: s["z"], 4: lambda s: s["z"]}}


def shown(ds, stage, kind):
    labels = ds.labels.to_list("label") if "label" in ds.labels else None
    rows = [[int(s["n"]), SHOWN[stage](s)] for s in ds]
    assert len(ds) == len(rows) and ds.complete
    keys = list(ds.keys)
    assert keys == [row[0] if stage == 4 else key_of(kind, row[0]) for row in rows], (keys, rows)
    for key in keys:
        place = int(ds.indices_of([key])[0])
        assert place == keys.index(key) and key in ds.keys
        assert int(ds.by_key(key)["n"]) == rows[place][0]
    return {{"rows": rows, "labels": labels}}


def viewed(ds, view):
    if view == "reversed":
        return ds[::-1]
    if view == "filtered":
        return ds.filter(label=[0, 1])
    return ds


def main(folder, killed_at=0):
    with open(os.path.join(folder, "state.json")) as file:
        state = json.load(file)
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    RUN.update(log=log, delay=state["delay"], calls=0, killed_at=killed_at)
    kind = state["kind"]
    source = globals()[state["form"]](state["rows"], kind, state["versions"][0], os.path.join(folder, "files"))
    options = {{"progress": False, "num_workers": state["workers"], "multiprocessing_context": "fork"}}
    keep = {{"keep": "label"}} if state["keep"] else {{}}
    stale, told = {{}}, []

    def made(stage, make):
        try:
            return make()
        except edcache.StaleCacheError as error:
            stale[stage] = str(error)
            return make(keep_existing=False)

    def one(**more):
        path = os.path.join(folder, "1.zip")
        if state["by_map"]:
            return edcache.map(same, source, path, in_memory_keys=["label", "group"], **options, **more)
        return edcache.CachedDataset(source, path, in_memory_keys=["label", "group"], **options, **more)

    def two(**more):
        fn, size = (doubled_batch, {{"batch_size": 3}}) if state["batches"] else (doubled, {{}})
        return edcache.map(
            fn, viewed(first, state["view"]), os.path.join(folder, "2.zip"), version=state["versions"][1],
            **keep, **size, **options, **more,
        )

    def three(**more):
        return edcache.map(
            summed, second, os.path.join(folder, "3.zip"), version=state["versions"][2], **options, **more
        )

    def four(**more):
        return edcache.map(
            grouped, first, os.path.join(folder, "4.zip"), version=state["versions"][3], key="group", **options, **more
        )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = made(1, one)
        second = made(2, two)
        third = made(3, three)
        fourth = made(4, four)
    told += [str(one.message) for one in caught]
    result = {{
        "stale": stale, "told": told,
        "stages": {{stage: shown(ds, stage, kind) for stage, ds in enumerate((first, second, third, fourth), 1)}},
    }}
    with open(os.path.join(folder, f"result-{{os.getpid()}}.json"), "w") as file:
        json.dump(result, file)
    os.close(log)


def reread(folder, kind, verified):
    stages = {{}}
    for stage in (1, 2, 3, 4):
        path = os.path.join(folder, f"{{stage}}.zip")
        stages[stage] = shown(edcache.CachedDataset.from_cache(path), stage, kind)
        assert not verified or edcache.verify(path).problems == []
    with open(os.path.join(folder, f"result-{{os.getpid()}}.json"), "w") as file:
        json.dump({{"stages": stages}}, file)


if __name__ == "__main__":
    main(sys.argv[1])
"""


class Plain:
    """What the stages are to be, by Python alone: `rows` of each, and `made_of`, the pairs that make them."""

    def __init__(self, state, constants):
        one, two, three, four = constants
        self.labels, self.rows, self.made_of = {}, {}, {}
        numbers, xs, self.labels[1] = [], [], []
        self.made_of[1] = []
        for number, payload, revision in state["rows"]:
            revision = 0 if state["form"] == "Valued" else revision
            self.made_of[1].append((number, str((payload, revision))))
            numbers.append(number)
            xs.append(payload * 7 + one + 1000 * state["versions"][0])
            self.labels[1].append(payload % 3)
        self.rows[1] = [[n, [x, x + 1]] for n, x in zip(numbers, xs, strict=True)]
        chosen = [*zip(numbers, xs, self.labels[1], strict=True)]
        if state["view"] == "reversed":
            chosen.reverse()
        if state["view"] == "filtered":
            chosen = [row for row in chosen if row[2] < 2]
        self.labels[2] = [label for *_, label in chosen] if state["keep"] else None
        self.labels[3] = None
        self.made_of[2] = [(n, str(x)) for n, x, _ in chosen]
        ys = [2 * x + two for _, x, _ in chosen]
        self.rows[2] = [[n, [y, y + 2]] for (n, *_), y in zip(chosen, ys, strict=True)]
        self.made_of[3] = [(n, str(y)) for (n, *_), y in zip(chosen, ys, strict=True)]
        groups = [row[1] % 5 for row in state["rows"]]
        self.rows[4], self.labels[4] = [[group, 11 * group + four] for group in groups], None
        self.made_of[4] = [
            (
                one,
                str(
                    sorted({(n, x) for n, x, other in zip(numbers, xs, groups, strict=True) if one == other})
                ),
            )
            for one in groups
        ]
        self.rows[3] = [[n, 2 * y + 2 + three] for (n, *_), y in zip(chosen, ys, strict=True)]


class History:
    """One history in a folder, by its seed."""

    def __init__(self, folder, seed, real=False):
        self.folder, self.draw, self.real = Path(folder), random.Random(f"history {seed}"), real
        draw = self.draw
        self.state = {
            "kind": draw.choice(["text", "int", "bytes", "tuple"]),
            "form": draw.choice(["Listed", "Bulk", "Valued", "Folder"]),
            "by_map": draw.random() < 0.4,
            "batches": draw.random() < 0.5,
            "keep": draw.random() < 0.4,
            "view": draw.choice(["", "", "reversed", "filtered"]),
            "workers": draw.choice([0, 0, 0, 0, 0, 2]),
            "delay": draw.choice([0, 0, 0.001, 0.004]),
            "versions": [0, 0, 0, 0],
            "rows": [],
        }
        self.mean = "0.5" if "lists" in SPARED else draw.choice(["[0.5, 0.5, 0.5, 0.5]", "[]", "0.5"])
        self.allows_repeats = draw.random() < 0.5
        self.constants, self.idle, self.next = [1, 2, 3, 4], [-1, -2, -3, -4], 0
        self.processes = 2 if draw.random() < 1 / 3 else 1
        self.known = {stage: Known() for stage in (1, 2, 3, 4)}
        self.edits, self.counts = [], Counter()
        (self.folder / "files").mkdir()
        for _ in range(draw.choice([0, 1, 4, 12, 40])):
            self.state["rows"].append(self.new_row())

    def new_row(self):
        self.next += 1
        return [self.next, self.draw.randrange(1, 50), 1]

    # --- edits ---

    def edit(self, calm=False):
        rows, draw = self.state["rows"], self.draw
        kinds = ["add", "add", "remove", "change", "touch", "reorder", "rename", "nothing", "empty"]
        kinds += ["repeat"] * self.allows_repeats
        settings = ["setting", "constant", "constant and setting", "idle", "many", "many with constant"]
        stage = draw.randrange(4)
        if "order" in SPARED and self.is_other:  # a constant has changed
            kinds = ["add", "nothing"] + ["change", "touch"] * (self.state["view"] != "filtered")
            kinds = ["nothing"] if self.is_last else kinds
            settings = ["setting", "constant", "constant and setting", "idle", "many"]
        elif "order" in SPARED and self.is_edited:
            settings = ["setting", "idle", "many"]
        if "order" in SPARED and (self.is_edited or calm):
            stage = draw.randrange(3)
        kind = draw.choice(kinds if calm else kinds + settings)
        self.is_edited |= kind not in ("nothing", "setting", "idle", "constant", "constant and setting")
        self.is_other |= "constant" in kind
        self.is_last |= "constant" in kind and stage == 3
        place = draw.randrange(len(rows) + 1)
        some = [k for k in range(len(rows)) if draw.random() < 0.2] or list(range(len(rows)))[-1:]
        if kind == "add":
            rows[place:place] = [self.new_row() for _ in range(draw.choice([1, 2, 10]))]
        elif kind == "remove":
            for k in reversed(some):
                del rows[k]
        elif kind == "empty" and draw.random() < 0.3:
            rows.clear()
        elif kind == "change":
            for k in some:
                self.replace(rows[k], [rows[k][0], draw.randrange(1, 50), rows[k][2] + 1])
        elif kind == "touch":
            for k in some:
                self.replace(rows[k], [*rows[k][:2], rows[k][2] + 1])
        elif kind == "reorder":
            draw.shuffle(rows)
        elif kind == "rename" and rows:
            row = draw.choice(rows)
            self.replace(row, [self.new_row()[0], *row[1:]])
        elif kind == "repeat" and rows:
            row = list(draw.choice(rows))
            if draw.random() < 0.2 and self.state["form"] != "Folder":
                row[1:] = [draw.randrange(1, 50), row[2] + 1]
            rows.insert(place, row)
        elif kind == "idle":
            self.idle[stage] -= 10
        elif kind.startswith("many"):
            for _ in range(draw.randrange(2, 4)):
                self.edit(calm=True)
        if kind.endswith("setting"):
            self.state["versions"][stage] += 1
        if "constant" in kind:
            self.constants[stage] += 10
        self.edits.append(f"{kind} {stage + 1}")

    def replace(self, row, new):
        """Change a row, and the ones that are equal."""
        for one in [one for one in self.state["rows"] if one == row]:
            one[:] = new

    # --- running ---

    def write(self):
        state = self.state
        text = PIPELINE.format(
            constants=tuple(self.constants),
            idle=tuple(self.idle),
            mean=self.mean,
            sizes="3" if "lists" in SPARED else '{"a": 1}',
        )
        (self.folder / "pipeline.py").write_text(text)
        (self.folder / "state.json").write_text(json.dumps(state))
        if state["form"] == "Folder":
            for file in (self.folder / "files").iterdir():
                file.unlink()
            for number, payload, revision in state["rows"]:
                path = self.folder / "files" / f"{number}.txt"
                path.write_text(f"{payload} {revision}")
                os.utime(path, ns=(revision * 10**9, revision * 10**9))

    def start(self, kill):
        """Start a process that runs the pipeline; kill: None, or how."""
        folder, how = self.folder, kill or ("", 0)
        if self.real:
            command = [sys.executable, str(folder / "pipeline.py"), str(folder)]
            with open(folder / "errors", "a") as errors:
                program = subprocess.Popen(
                    command, env=child_environ(), stderr=errors, start_new_session=True
                )
            program.returncode = 0  # others wait for it
            return program.pid

        def step():
            with suppress(OSError):
                os.setpgid(0, 0)
            with open(folder / "errors", "a") as errors:
                try:
                    loaded(folder).main(str(folder), how[1] if how[0] == "call" else 0)
                except BaseException:
                    errors.write(f"{os.getpid()}\n{traceback.format_exc()}\n")
                    raise

        pid = in_child(step, Killing(how[1]) if how[0] == "change" else None)
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def run(self, kills):
        """Run processes at once; returns the pids of those that ended well, and how many were killed."""
        started = [self.start(kill) for kill in kills]
        for pid, kill in zip(started, kills, strict=True):
            if kill and kill[0] == "time":
                time.sleep(kill[1])
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        codes = [ended(pid) for pid in started]
        good = [pid for pid, code in zip(started, codes, strict=True) if code == 0]
        killed = codes.count(-signal.SIGKILL)
        assert len(good) + killed == len(kills), (self.folder / "errors").read_text()
        return good, killed

    def kill(self):
        draw = self.draw
        ways = [("time", draw.uniform(0, 0.15))]
        if self.real:
            return ("time", draw.uniform(1.5, 4))
        if not self.state["workers"]:
            ways += [("call", draw.randrange(1, 30))] * 2 + [("change", draw.randrange(1, 40))] * 2
        return draw.choice(ways)

    def step(self, first):
        """Edit, run until a process ends, and compare."""
        self.is_other = self.is_last = self.is_edited = False
        if not first:
            self.edit()
        self.write()
        for _ in range(self.draw.choice([0, 0, 0, 1, 1, 2])):
            self.attempt(
                [self.kill() if k == 0 or self.draw.random() < 0.5 else None for k in range(self.processes)]
            )
            if self.draw.random() < 0.3:
                self.edit()
                self.write()
        self.attempt([None] * self.processes)
        self.reread()
        self.counts["steps"] += 1
        self.edits.append("|")

    def attempt(self, kills):
        """Run processes, and compare what those that end see, and what all of them compute."""
        (self.folder / "log").write_text("")
        (self.folder / "errors").write_text("")
        good, killed = self.run(kills)
        self.edits.append(f"({len(good)} run, {killed} killed)")
        self.counts["runs"] += 1
        self.counts["killed"] += killed
        results = [self.compared(pid) for pid in good]
        calls = parsed((self.folder / "log").read_text(), good)
        plain = Plain(self.state, self.constants)
        calls[4] = {
            who: Counter({(n, dict(plain.made_of[4])[n]): number for (n, _), number in counted.items()})
            for who, counted in calls[4].items()
        }
        for stage in (1, 2, 3, 4):
            self.known[stage].count(self, stage, plain.made_of[stage], calls[stage], results, killed)

    def compared(self, pid):
        """Compare what a process saw with plain Python."""
        path = self.folder / f"result-{pid}.json"
        found = json.loads(path.read_text())
        path.unlink()
        plain = Plain(self.state, self.constants)
        assert not found.get("told"), found["told"]
        for stage in (1, 2, 3, 4):
            told = found["stages"][str(stage)]
            assert told["rows"] == plain.rows[stage], (
                f"stage {stage}: {told['rows']}, wanted {plain.rows[stage]}"
            )
            assert told["labels"] == plain.labels[stage], f"labels of stage {stage}: {told['labels']}"
        return found

    def reread(self):
        def step():
            loaded(self.folder).reread(str(self.folder), self.state["kind"], self.draw.random() < 0.3)

        pid = in_child(step)
        assert ended(pid) == 0
        self.compared(pid)
        left = {path.name for path in self.folder.iterdir()}
        left -= {
            "1.zip",
            "2.zip",
            "3.zip",
            "4.zip",
            "files",
            "log",
            "errors",
            "pipeline.py",
            "state.json",
            "__pycache__",
        }
        if left:
            self.counts["left files"] += 1


class Known:
    """What is known of the archive of a stage.

    Attributes: there: pairs that it has; None if it may not exist. tried: pairs that killed processes may have stored.
        made_by: constants that it may have been made by: the one that counts, the idle one, and the setting.
    """

    def __init__(self):
        self.there, self.tried, self.made_by, self.order = None, set(), set(), None
        self.seen = set()

    def count(self, history, stage, made_of, calls, results, killed):
        """Compare the calls of an attempt with what is affected, and note what is there now."""
        name, at, processes = f"stage {stage}", stage - 1, history.processes
        now = history.constants[at], history.idle[at], history.state["versions"][at]
        needed, there = {*made_of}, self.there
        stale = [one["stale"][str(stage)] for one in results if str(stage) in one["stale"]]
        is_other = any((one[0], one[2]) != (now[0], now[2]) for one in self.made_by)
        assert is_other or not stale, f"{name} is not stale: {stale[0]}"
        asks = any(one[:2] != now[:2] for one in self.made_by) or (
            # A list may have as many items as there are samples now, or then.
            stage == 1 and "lists" not in SPARED
        )
        may_be_built = there is None or is_other
        todo = needed if may_be_built else needed - there
        for who, counted in calls.items():
            assert {*counted} <= needed | (there or set()), f"{name} computed { ({*counted} - needed) }"
            count = processes - killed if who == "good" else 1
            checks = (ASKED if asks else 1) * count
            if is_other:
                checks *= DRAWS
            if may_be_built:
                checks += FIRST * count * (3 if stage == 2 and history.state["batches"] else 1)
            if self.tried or killed or processes > 1:  # samples beside the archive are gone on with, too
                checks += count * (ASKED if asks else 1)
            extra = Counter(counted)
            is_late = "late" in SPARED and there is not None
            extra.subtract(dict.fromkeys(todo, count if is_other or is_late else 1))
            total = sum(number for number in extra.values() if number > 0)
            assert total <= checks, (
                f"{name} computed {[*(+extra).items()]}, {total} beside the {len(todo)} of {len(needed)} that are "
                f"new; {checks} are right"
            )
            history.counts["beside"] += total
        done = {pair for counted in calls.values() for pair in counted}
        must = needed - self.tried - (there or set())
        if stage == 4:  # the least version of the samples of a key counts
            must = {pair for pair in must if pair[0] not in self.seen}
        if results and (stale or not is_other):
            lacking = (needed if stale else must) - done
            assert not lacking or (stale and killed), f"{name} did not compute {lacking}"
        self.seen |= {one for one, _ in needed}
        history.counts["new"] += len(todo)
        history.counts["stale"] += len(stale)
        if results:
            is_written = stale or not self.made_by or (must and there is not None)
            if is_written and not killed:
                self.made_by = {now}
            elif self.order != [*made_of] or killed:  # it may be written
                self.made_by.add(now)
            self.there, self.tried, self.order = needed, set(), [*made_of]
        else:
            self.there = None if there is None else there & needed
            self.order = None
            self.tried |= done
            self.made_by.add(now)


def parsed(text, good):
    """Counters of the calls in a log, by stage: of the processes that ended well together, and of each killed one."""
    calls = {1: {}, 2: {}, 3: {}, 4: {}}
    for line in text.splitlines():
        pid, stage, number, made_of = line.split(" ", 3)
        who = "good" if int(pid) in good else pid
        calls[int(stage)].setdefault(who, Counter())[int(number), made_of] += 1
    return calls


def loaded(folder):
    """Load the pipeline as a script is, in this process."""
    path, scope = str(folder / "pipeline.py"), {"__name__": "pipeline"}
    module = type(sys)("pipeline")
    module.__file__ = path
    sys.modules["pipeline"] = module
    scope = vars(module)
    exec(compile((folder / "pipeline.py").read_text(), path, "exec"), scope)
    return module


def run_history(folder, seed, steps=6, real=False):
    """Run a history; an AssertionError tells its seed and edits."""
    history = History(folder, seed, real)
    try:
        for number in range(steps):
            history.step(first=number == 0)
    except AssertionError as error:
        told = {name: value for name, value in history.state.items() if name != "rows"}
        raise AssertionError(
            f"seed {seed}, {history.processes} processes, {told}, {' '.join(history.edits)}:\n{error}"
        ) from None
    return history.counts


@pytest.fixture(scope="module", autouse=True)
def warmed(tmp_path_factory):
    warm(tmp_path_factory.mktemp("warm"))


@pytest.mark.parametrize("number", thinned(range(scaled(400, 6)), 2))
def test_a_history_of_edits_is_what_plain_python_makes_and_computes_what_is_new(tmp_path, number):
    run_history(tmp_path, f"{SEED} {number}")


@pytest.mark.full
@pytest.mark.parametrize("number", range(scaled(20, 1)))
def test_a_history_in_programs_of_their_own(tmp_path, number):
    run_history(tmp_path, f"{SEED} {number}", 3, real=True)


def warm(folder):
    """Import in this process what its forks need."""
    history = History(folder, 0)
    history.write()
    module = loaded(history.folder)
    module.main(str(folder))
    module.reread(str(folder), history.state["kind"], True)


if __name__ == "__main__":
    start, count = map(int, sys.argv[1:3])
    SPARED -= {*sys.argv[3:]}
    with tempfile.TemporaryDirectory() as place:
        warm(Path(place))

    total = Counter()
    for seed in range(start, start + count):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as place:
            try:
                total += run_history(Path(place), f"0 {seed}")
                total["histories"] += 1
            except AssertionError as failure:
                print(str(failure)[:3000], "\n", flush=True)
                total["failed"] += 1
        print(f"{seed}: {dict(total)}", file=sys.stderr, flush=True)
