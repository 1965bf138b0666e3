"""The public names, and what they cost."""

import subprocess
import sys
from pathlib import Path

import pytest

import ruststream

PYTHON = str(Path(__file__).parents[2] / "python")


def test_the_public_names_are_sorted_and_there():
    assert list(ruststream.__all__) == sorted(
        ruststream.__all__, key=lambda name: (name.upper() != name, name.lower() == name, name)
    )
    for name in ruststream.__all__:
        assert getattr(ruststream, name) is not None
    assert set(ruststream.__all__) <= set(dir(ruststream))


def test_the_smallest_service_imports_what_it_needs():
    from ruststream import Context, RustStream, retry
    from ruststream.context import Context as Same

    assert Context is Same
    assert RustStream.__module__ == "ruststream.app"
    assert retry().kind == "retry"


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="nothing"):
        _ = ruststream.nothing
    with pytest.raises(ImportError):
        from ruststream import nothing  # noqa: F401


@pytest.mark.parametrize("statement", ["import ruststream", "import ruststream.redis, ruststream.cli"])
def test_no_extra_is_imported(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": PYTHON}
    )
    loaded = set(ended.stdout.split())
    assert not loaded & {"redis", "click", "boto3", "botocore", "aioboto3", "rich", "watchfiles", "prometheus_client"}
    if statement == "import ruststream":
        assert not loaded & {"asyncio", "msgspec", "ruststream._core"}
