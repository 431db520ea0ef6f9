"""Servers of objects on loopback, each a process of its own: nginx, an S3 and a Google Cloud Storage."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

START_SECONDS = 60
# Else gcsfs asks for a minute, over gRPC, what kind of bucket each is. Read when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

NGINX = """
daemon off; {user} worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log {folder}/access.log; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError:
        return False
    return True


@contextmanager
def running(command, url, log):
    """A server process, from when it answers to the end of the block."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        end = time.monotonic() + START_SECONDS
        while not answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def nginx(folder):
    """nginx over `folder`/www; gives its URL. Skips where it is not installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    (folder / "www").mkdir()
    (folder / "nginx.conf").write_text(
        NGINX.format(folder=folder, port=port, user="" if os.getuid() else "user root;")
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, f"http://127.0.0.1:{port}/", folder / "log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def s3(folder):
    """moto's S3; gives storage options that lead to it, with keys it does not look at."""
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "moto.server", "-p", str(port)], url, folder / "log"):
        yield {"endpoint_url": url, "key": "AKIDEXAMPLE", "secret": "s3cr3t-t0ken"}


@contextmanager
def gs(folder):
    """gcp-storage-emulator with a bucket "bucket"; gives storage options that lead to it."""
    pytest.importorskip("gcp_storage_emulator")
    pytest.importorskip("gcsfs")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", f"--port={port}", "--in-memory"]
    with running([*command, "--default-bucket=bucket"], url, folder / "log"):
        yield {"endpoint_url": url, "token": "anon"}
