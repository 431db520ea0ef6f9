"""A redis-server of this process's own, on a socket in a folder of its own."""

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from optional import Library, need

redis = Library("redis")
PROGRAM = shutil.which("redis-server")


class Server:
    """Keeps nothing on the disk; `restart` loses everything."""

    def __init__(self, *options):
        need("redis")
        if PROGRAM is None:
            pytest.skip("no redis-server here (Debian's package redis-server)")
        # Not pytest's folder: the path of a socket has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="edcache-redis-")
        self.socket = str(Path(self._folder.name, "r.sock"))
        self._options = options
        self._password = options[options.index("--requirepass") + 1] if "--requirepass" in options else None
        self.start()

    def start(self):
        common = ["--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [PROGRAM, *common, "--dir", self._folder.name, *self._options], stdout=subprocess.DEVNULL
        )
        self.raw = redis.Redis(unix_socket_path=self.socket, password=self._password)
        for _ in range(600):
            try:
                self.raw.ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None
                time.sleep(0.05)
        raise AssertionError("redis-server does not answer")

    def stop(self):
        self._process.kill()
        self._process.wait()

    def stopped(self, is_so):
        """Let it do nothing, as on a machine that swaps, or go on."""
        self._process.send_signal(signal.SIGSTOP if is_so else signal.SIGCONT)

    def restart(self):
        self.stop()
        self.start()

    def close(self):
        self.raw.close()
        self.stop()
        self._folder.cleanup()

    def url(self, prefix=None, credentials="", **options):
        options = ([("prefix", prefix)] if prefix else []) + list(options.items())
        query = "&".join(f"{name}={value}" for name, value in options)
        return f"unix://{credentials}{self.socket}?{query}" if query else f"unix://{credentials}{self.socket}"

    def all_keys(self, pattern="*"):
        return sorted(key.decode() for key in self.raw.scan_iter(match=pattern, count=10_000))

    def calls(self, command):
        """How often the server was given a command."""
        return self.raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)

    def fill_up(self, nbytes):
        """Leave room for so many bytes more."""
        self.raw.config_set("maxmemory", self.raw.info("memory")["used_memory"] + nbytes)
