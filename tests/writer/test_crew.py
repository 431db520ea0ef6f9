"""Fills by worker processes: shared work, dead and hung workers, interrupts, a parent that dies."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
from filled import available, computed, note, processes
from written import write

import edcache
from edcache import CachedDataset
from edcache.base.options import FillOptions
from edcache.errors import (
    LabelError,
    MissingSampleError,
    OptionError,
    SourceError,
)
from edcache.labels.label_spec import LabelSpec
from edcache.reader import Reader
from edcache.writer.crew import Crew
from edcache.writer.job import Job, worker_count
from edcache.writer.match import new_head

COUNT = 200


class Source:
    """Logs what it computes; `at` says what happens at some indices."""

    def __init__(self, log, count=COUNT, at=None, seconds=0.001):
        self.log, self.count, self.at, self.seconds = str(log), count, at or {}, seconds

    def __edcache_fingerprint__(self):
        return {}  # one that fails is the same as one that was mended

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        note(self.log, i)
        time.sleep(self.seconds)
        if i in self.at:
            happen(self.at[i], i)
        return sample(i)


def sample(i):
    return {"x": torch.full((50,), i), "y": i % 3}


def happen(what, i):
    if what == "raise":
        raise ValueError(f"bad {i}")
    if what == "exit":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(1000)
    if what == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        time.sleep(1000)
    if what == "local":
        raise local_error()


def local_error():
    class Local(Exception):
        pass

    return Local("of no module")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_gone(pids, seconds):
    limit = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def check_whole(path, count=COUNT, but=()):
    ds = CachedDataset.from_cache(path, allow_partial=True)
    for i in range(count):
        if i not in but:
            assert ds[i]["x"].tolist() == [i] * 50
            assert ds.labels["y"][i] == i % 3
    assert edcache.verify(path).problems == []
    return ds


def fill(source, path, workers=2, **options):
    options |= {"in_memory_keys": ["y"], "spot_check": False}
    return CachedDataset(source, path, num_workers=workers, **options)


# --- the work is shared -----------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_compute_every_sample_once_and_the_archive_is_sealed(path, log, context):
    ds = fill(Source(log, seconds=0.01), path, multiprocessing_context=context)
    assert computed(log) == list(range(COUNT))
    assert len(processes(log)) == 2
    assert os.getpid() not in processes(log)
    assert Reader(path, allow_partial=True).session.sealed
    assert ds.complete
    check_whole(path)
    assert all_gone(processes(log), 5)


def test_warmup_takes_a_number_of_workers(path, log):
    ds = CachedDataset(Source(log), path, in_memory_keys=["y"], lazy=True, spot_check=False)
    ds[3]
    ds.warmup(num_workers=2)
    assert computed(log) == list(range(COUNT))
    assert len(processes(log)) == 3
    assert ds.complete


def test_auto_takes_the_processors_that_this_process_may_use(path, log):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert worker_count("auto") == 1
        fill(Source(log), path, "auto")
        assert len(processes(log)) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_there_are_no_more_workers_than_claims(path, log):
    fill(Source(log, count=3), path, 20)
    assert len(processes(log)) <= 3
    check_whole(path, 3)


def test_the_bar_of_a_parallel_fill_counts_to_the_end(path, log, capsys):
    fill(Source(log), path, progress=True)
    assert f"{COUNT}/{COUNT}" in capsys.readouterr().err


def test_a_function_is_told_of_the_progress(path, log):
    told = []
    fill(Source(log), path, progress=lambda present, total: told.append((present, total)))
    assert told[-1] == (COUNT, COUNT)
    assert told == sorted(told)


@pytest.mark.full
def test_fill_inside_a_daemonic_process_computes_there(path, log):
    code = f"""
        import multiprocessing, sys
        sys.path[:] = {sys.path!r}
        from test_crew import Source, fill
        if __name__ == "__main__":
            process = multiprocessing.get_context("fork").Process(
                target=fill, args=(Source({str(log)!r}), {str(path)!r}), daemon=True
            )
            process.start(); process.join(); sys.exit(process.exitcode)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
    assert len(processes(log)) == 1
    check_whole(path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -1}, 'num_workers=-1; give 0 or more, or "auto"'),
        ({"workers": True}, 'num_workers=True; give 0 or more, or "auto"'),
        ({"multiprocessing_context": "thread"}, "multiprocessing_context='thread'; choose one of "),
        ({"on_error": "ignore"}, "on_error='ignore'; choose one of 'raise', 'skip', 'skip_final'"),
        ({"timeout": 0}, "timeout=0; give seconds above 0, or None"),
        ({"max_bytes": 10}, "max_bytes= is for lazy=True; a fill stores every sample"),
    ],
)
def test_wrong_options_are_refused(path, log, options, text):
    with pytest.raises(OptionError) as caught:
        fill(Source(log), path, **options)
    assert text in str(caught.value)
    assert not path.exists()


# --- samples that cannot be made --------------------------------------------------------------------


def test_what_a_source_raises_in_a_worker_is_raised_here(path, log):
    with pytest.raises(SourceError, match="raised at index 77: ValueError: bad 77") as caught:
        fill(Source(log, at={77: "raise"}), path)
    assert 'raise ValueError(f"bad {i}")' in str(caught.value.__cause__)
    assert all_gone(processes(log), 5)
    assert 0 < Reader(path, allow_partial=True).session.index.present < COUNT
    log.unlink()
    kept = Reader(path, allow_partial=True).session.index.present
    fill(Source(log), path)
    assert len(computed(log)) == COUNT - kept


def test_an_exception_that_cannot_be_sent_is_told_as_text(path, log):
    with pytest.raises(SourceError, match="the source raised at index 7: Local: of no module") as caught:
        fill(Source(log, at={7: "local"}), path)
    assert "raise local_error()" in str(caught.value.__cause__)


@pytest.mark.full
def test_it_is_told_too_where_exceptions_are_pickled_with_their_causes(path, log):
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from test_crew import *\n"
        "import tblib.pickling_support; tblib.pickling_support.install()\n"
        f"test_an_exception_that_cannot_be_sent_is_told_as_text({str(path)!r}, {str(log)!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_is_no_error_of_a_sample_is_told_with_its_text(path, log):
    def leave(sample):
        raise SystemExit("enough")

    with pytest.raises(SourceError, match=r"^a worker process raised SystemExit: enough"):
        CachedDataset(Source(log), path, in_memory_keys={"y": leave}, num_workers=2)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("count", [0, 1])
def test_a_failure_is_recorded_whatever_its_text_is(path, log, count):
    class Odd(Source):
        def __getitem__(self, i):
            if i == 2:
                raise Mute
            if i == 5:
                raise ValueError("long" * 1_000_000)
            return super().__getitem__(i)

    ds = fill(Odd(log), path, count, on_error="skip_final")
    assert [(e.index, e.message[:30]) for e in ds.errors] == [
        (2, "(its text raised RuntimeError)"),
        (5, ("long" * 10)[:30]),
    ]
    assert path.stat().st_size < 1_000_000
    assert ds.complete


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 2])
def test_skipped_samples_are_recorded_and_tried_again(path, log, count):
    ds = fill(Source(log, at={7: "raise", 90: "raise"}), path, count, on_error="skip")
    assert [(e.index, e.final, e.error, e.message) for e in ds.errors] == [
        (7, False, "ValueError", "bad 7"),
        (90, False, "ValueError", "bad 90"),
    ]
    assert "in happen" in ds.errors[0].traceback
    assert not ds.complete
    assert ds.missing.tolist() == [7, 90]
    assert len(available(ds)) == COUNT - 2
    with pytest.raises(
        MissingSampleError,
        match=r"sample 7 failed when it was made: ValueError: bad 7; a later fill tries again",
    ):
        ds[7]
    check_whole(path, but=(7, 90))
    log.unlink()
    again = fill(Source(log, at={90: "raise"}), path, count, on_error="skip")
    assert computed(log) == [7, 90]
    assert [error.index for error in again.errors] == [90]
    log.unlink()
    whole = fill(Source(log), path, count)
    assert computed(log) == [90]
    assert whole.complete
    assert whole.errors == []
    check_whole(path)


@pytest.mark.parametrize("count", [0, 2])
def test_samples_that_are_absent_for_good_do_not_keep_the_archive_open(path, log, count):
    ds = fill(Source(log, at={7: "raise", 90: "raise"}), path, count, on_error="skip_final")
    assert ds.complete
    assert Reader(path, allow_partial=True).session.sealed
    assert len(ds) == COUNT
    assert ds.missing.tolist() == [7, 90]
    log.unlink()
    opened = fill(Source(log), path, count)
    assert not log.exists()
    assert [error.index for error in opened.errors] == [7, 90]
    text = f"{path}: sample 90 failed when it was made: ValueError: bad 90; it counts as absent for good; ds.errors"
    with pytest.raises(MissingSampleError) as caught:
        CachedDataset.from_cache(path, allow_partial=True)[90]
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert available(opened).batch(range(COUNT - 2))["y"].tolist() == [
        i % 3 for i in range(COUNT) if i not in (7, 90)
    ]
    check_whole(path, but=(7, 90))


def test_an_archive_that_only_failed_samples_keep_open_says_so(path, log):
    fill(Source(log, at={7: "raise"}), path, 0, on_error="skip")
    with pytest.warns(edcache.errors.PartialArchiveWarning) as caught:
        CachedDataset.from_cache(path)
    assert str(caught[0].message) == (
        f"{path}: not sealed: 1 of 200 samples failed when they were made (see `errors`). Fill it again, "
        'which tries them again; on_error="skip_final" seals without them; or take it as it is: '
        "allow_partial=True"
    )
    assert fill(Source(log, at={7: "raise"}), path, 0, on_error="skip_final").complete


def test_skipped_failures_survive_growth_and_compaction(path, log):
    fill(Source(log, at={7: "raise"}), path, 0, on_error="skip_final")
    write(path, [sample(COUNT)], "a", in_memory_keys=["y"])
    assert [error.index for error in CachedDataset.from_cache(path, allow_partial=True).errors] == [7]
    write(path, [sample(7)], "a", indices=[7], in_memory_keys=["y"])
    assert CachedDataset.from_cache(path, allow_partial=True).errors == []
    check_whole(path, COUNT + 1)


def test_a_sample_that_makes_no_label_is_one_that_failed(path, log):
    class Odd(Source):
        def __getitem__(self, i):
            return [1, 2] if i == 7 else super().__getitem__(i)

    with pytest.raises(LabelError, match=r'a.zip: label "y": sample 7 has no field "y"'):
        fill(Odd(log), path)
    ds = fill(Odd(log), path, on_error="skip")
    assert [(e.index, e.error) for e in ds.errors] == [(7, "LabelError")]


# --- samples that end or hang their process ---------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(("what", "how"), [("exit", "exit code 3"), ("kill", "killed by SIGKILL")])
def test_a_sample_that_ends_its_process_three_times_ends_the_fill_or_is_recorded(path, log, what, how):
    text = f"sample 50 ended its process 3 times ({how})"
    with pytest.raises(SourceError) as caught:
        fill(Source(log, at={50: what}), path, 1)
    assert str(caught.value) == (
        f"{path}: {text}; {path} keeps 199 of 200 samples; the same call computes the rest"
    )
    assert computed(log).count(50) == 3
    path.unlink()
    log.unlink()
    ds = fill(Source(log, at={50: what}), path, on_error="skip")
    # A worker may begin it while the third death is counted.
    assert computed(log).count(50) in (3, 4)
    assert [(e.index, e.error, e.message) for e in ds.errors] == [(50, "SourceError", text)]
    assert ds.missing.tolist() == [50]
    check_whole(path, but=(50,))


@pytest.mark.full
def test_several_of_them_are_recorded(path, log):
    ds = fill(Source(log, at={3: "kill", 4: "exit", 150: "kill"}), path, on_error="skip_final")
    assert [(e.index, e.error) for e in ds.errors] == [(i, "SourceError") for i in (3, 4, 150)]
    assert ds.complete
    check_whole(path, but=(3, 4, 150))


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_somebody_else_ends_is_replaced(path, log, tmp_path, number):
    class Once(Source):
        def __getitem__(self, i):
            if i == 20 and not (tmp_path / "ended").exists():
                (tmp_path / "ended").touch()
                os.kill(os.getpid(), number)
            return super().__getitem__(i)

    assert fill(Once(log), path, 1).complete
    check_whole(path)


def test_a_sample_that_a_second_worker_had_begun_is_set_aside_once(path, log):
    spec = LabelSpec.parse(None)
    job = Job(
        Source(log), str(path), new_head(spec, length=100), spec, 10, "never", FillOptions(on_error="skip")
    )
    with closing(job.open()) as appender:
        crew = Crew(job, 2, appender, lambda: None)
        for _ in range(4):
            crew._note_death(50, 1, -signal.SIGKILL)
        assert list(appender.chain.failures) == [50]
        assert appender.chain.failures[50][0] == appender.chain.cursor.number - 1


def test_a_worker_that_is_killed_once_is_replaced(path, log, tmp_path):
    class Once(Source):
        def __getitem__(self, i):
            if i == 20 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.03)  # so that the third process finds something to do
            return super().__getitem__(i)

    fill(Once(log), path)
    assert len(processes(log)) == 3
    check_whole(path)


@pytest.mark.full
def test_workers_that_cannot_start_end_the_fill(path, log, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys, os
            if os.environ.get("STARTED") == "1":
                os._exit(9)
            os.environ["STARTED"] = "1"
            sys.path[:] = {sys.path!r}
            from test_crew import Source, fill
            fill(Source({str(log)!r}), {str(path)!r}, 1, multiprocessing_context="spawn")
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert "SourceError" in done.stderr
    assert "4 worker processes ended (exit code 9) while they computed no sample" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_main_guard_is_told_so_once(path, log, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            sys.path[:] = {sys.path!r}
            from test_crew import Source, fill
            fill(Source({str(log)!r}), {str(path)!r}, 4, multiprocessing_context="{method}")
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"edcache.errors.OptionError: {path}: each worker process imports this script anew"
    )
    assert 'put the call below `if __name__ == "__main__":`, or use num_workers=0' in last


@pytest.mark.full
@pytest.mark.parametrize("what", ["hang", "deaf"])
@pytest.mark.parametrize("count", [0, 2])
def test_a_sample_that_hangs_is_ended_by_its_timeout(path, log, what, count):
    ds = fill(Source(log, at={50: what}), path, count, timeout=0.4, on_error="skip", chunk_size=10)
    assert [(e.index, e.error) for e in ds.errors] == [(50, "TimeoutError")]
    assert ds.errors[0].message == "sample 50 took longer than timeout=0.4 seconds"
    assert computed(log).count(50) == 1
    check_whole(path, but=(50,))
    assert all_gone(processes(log), 5)


class Threaded(Source):
    """Hangs in a thread of its own, which keeps its process from ending."""

    pool = None

    def __getitem__(self, i):
        if i == 50:
            self.pool = self.pool or ThreadPoolExecutor(1)
            self.pool.submit(time.sleep, 600).result()
        return super().__getitem__(i)


@pytest.mark.full
def test_a_hung_thread_of_the_source_does_not_keep_the_fill(path, log):
    ds = fill(Threaded(log), path, 1, timeout=0.4, on_error="skip")
    assert [(e.index, e.error) for e in ds.errors] == [(50, "TimeoutError")]
    check_whole(path, but=(50,))
    assert all_gone(processes(log), 5)


def test_a_timeout_ends_the_fill_and_keeps_what_was_computed(path, log):
    with pytest.raises(
        SourceError,
        match=r"sample 50 took longer than timeout=0.4 seconds; .*a.zip keeps 50 of 200 samples",
    ):
        fill(Source(log, at={50: "hang"}), path, 1, timeout=0.4)
    assert Reader(path, allow_partial=True).session.index.present == 50
    assert all_gone(processes(log), 5)


class Pooled(Source):
    """Computes in processes of its own, which end by a signal as the pool is left."""

    def __getitem__(self, i):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-i, i]) == [i, i]
        return super().__getitem__(i)


@pytest.mark.full
def test_a_source_may_have_a_pool_of_processes(path, log):
    # A handler in Python, as Ray leaves one behind, makes the end of a Pool wait for ever now and then, in any process.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL) or signal.SIG_DFL
    try:
        fill(Pooled(log), path, timeout=20)
    finally:
        signal.signal(signal.SIGTERM, before)
    check_whole(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_source_forks_has_the_handlers_of_the_process_that_fills(path, log, number):
    class Forks(Source):
        def __getitem__(self, i):
            end, start = os.pipe()
            if os.fork() == 0:
                os.write(start, f"{signal.getsignal(number) is handler}".encode())
                os._exit(0)
            os.close(start)
            assert os.read(end, 9) == b"True"
            os.close(end)
            return super().__getitem__(i)

    def handler(*_):
        raise AssertionError

    before = signal.signal(number, handler)
    try:
        fill(Forks(log, 4), path, multiprocessing_context="fork")
    finally:
        signal.signal(number, before)
    check_whole(path, 4)


def test_a_source_that_cannot_be_sent_is_refused(path, log):
    source = Source(log)
    source.extra = lambda: None
    with pytest.raises(OptionError, match="cannot be sent to worker processes: .*use num_workers=0"):
        fill(source, path, multiprocessing_context="spawn")
    assert fill(source, path, multiprocessing_context="fork").complete


# --- the parent is interrupted, or dies -------------------------------------------------------------

PROGRAM = """
import sys
sys.path[:] = {modules!r}
from test_crew import Source, fill
if __name__ == "__main__":
    fill(Source({log!r}, count=2000, seconds={seconds}), {path!r}, 2, multiprocessing_context={context!r})
"""


# The rest of such a fill takes a minute, so that what ends within some seconds did not wait for it.
SLOW, AT_ONCE = 0.06, 20


def start(path, log, tmp_path, context, seconds=0.005):
    script = tmp_path / "fill.py"
    script.write_text(
        PROGRAM.format(modules=sys.path, log=str(log), path=str(path), context=context, seconds=seconds)
    )
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while (
        not log.exists()
        or len(processes(log)) < 2
        or Reader(path, allow_partial=True).session.index.present < 20
    ):
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.02)
    return process


@pytest.mark.full
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_a_killed_parent_end_by_themselves(path, log, tmp_path, context):
    process = start(path, log, tmp_path, context)
    process.kill()
    process.wait()
    assert all_gone(processes(log), 5)
    process.stderr.close()
    done = computed(log)
    kept = Reader(path, allow_partial=True).session.index.present
    assert len(done) - kept <= 2  # what was being computed; the rest was published
    log.unlink()
    fill(Source(log, count=2000, seconds=0), path)
    assert len(computed(log)) == 2000 - kept
    check_whole(path, 2000)


@pytest.mark.full
@pytest.mark.parametrize("group", [False, True], ids=["parent", "terminal"])
def test_ctrl_c_ends_a_parallel_fill_at_once_and_says_how_to_go_on(path, log, tmp_path, group):
    process = start(path, log, tmp_path, "fork", seconds=SLOW)
    pids = processes(log)
    began = time.monotonic()
    for pid in [process.pid, *(pids if group else [])]:
        os.kill(pid, signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert time.monotonic() - began < AT_ONCE
    assert all_gone(pids, 5)
    kept = Reader(path, allow_partial=True).session.index.present
    last = f"KeyboardInterrupt: interrupted; {path} keeps {kept:,} of 2,000 samples; the same call "
    assert text.splitlines()[-1] == f"{last}computes the rest"
    assert text.count("Traceback") == 1
    assert len(computed(log)) - kept <= 2


@pytest.mark.full
def test_a_second_ctrl_c_ends_it_at_once(path, log, tmp_path):
    process = start(path, log, tmp_path, "fork", seconds=SLOW)
    pids = processes(log)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - began < AT_ONCE
    assert all_gone(pids, 5)


@pytest.mark.full
def test_a_deaf_worker_does_not_keep_an_interrupted_parent(path, log, tmp_path):
    process = start(path, log, tmp_path, "fork", seconds=SLOW)
    pids = processes(log)
    os.kill(min(pids), signal.SIGSTOP)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert time.monotonic() - began < AT_ONCE
    assert all_gone(pids, 5)


# --- beside other processes -------------------------------------------------------------------------
