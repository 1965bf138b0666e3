"""URLs of Redis servers."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream.errors import ConfigError
from ruststream.redis.address import read_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost"),
        ("redis://localhost:6380/2", "redis://localhost:6380/2"),
        ("redis://user:secret@cache.example:6380/0", "redis://***@cache.example:6380/0"),
        ("memory://", "memory://"),
        ("memory://orders", "memory://orders"),
        ("redis://:secret@localhost", "redis://***@localhost"),
        ("redis://user@localhost", "redis://***@localhost"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("redis://localhost/0?protocol=resp3", "redis://localhost/0?protocol=resp3"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("REDIS://Localhost", "redis://localhost"),
        (" redis://localhost\n", "redis://localhost"),
    ],
)
def test_an_address_shows_no_secret(url, shown):
    address = read_address(url)
    assert address.shown == shown
    assert address.url == url.strip()
    assert "secret" not in repr(address)
    assert address.has_credentials == ("***" in shown)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "scheme"),
        ("localhost:6379", "scheme"),
        ("redis:localhost", "scheme"),
        ("http://localhost", "redis://"),
        ("memory://a:b@c", "memory://orders"),
        ("memory://name:1", "memory://orders"),
        ("memory://name?db=1", "memory://orders"),
        ("rediss://localhost", "without TLS"),
        ("redis://localhost?password=secret", "password="),
        ("unix:///run/redis.sock?pass=secret", "password="),
        ("redis+unix:///x", "unix://"),
        ("redis://", "host"),
        ("redis://:6379", "host"),
        ("redis://localhost:port", "host or port"),
        ("redis://localhost:99999", "host or port"),
        ("redis://localhost:0", "port"),
        ("redis://[::1", "host or port"),
        ("redis://localhost/name", "database"),
        ("redis://localhost/-1", "database"),
        ("redis://localhost/²", "database"),
        ("redis://local host", "blanks"),
        ("redis://:sec/ret@localhost", "%2F"),
        ("redis://:sec#ret@localhost", "%23"),
        ("redis://:6?sec@localhost", "%3F|%40|host"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix://me:secret@/run/redis.sock", "three slashes"),
        ("unix:///", "path"),
        (None, "string"),
        (b"redis://localhost", "string"),
    ],
)
def test_a_wrong_url_is_refused_and_not_repeated(url, hint):
    with pytest.raises(ConfigError, match=hint) as caught:
        read_address(url)
    assert "sec" not in str(caught.value)


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_quoted_password_is_never_shown(username, password):
    try:
        url = f"redis://{quote(username, safe='')}:{quote(password, safe='')}@localhost:6379/0"
    except UnicodeEncodeError:
        return
    assert read_address(url).shown == "redis://***@localhost:6379/0"


@given(st.text(alphabet="redis:/@#?[]%ab1 .", max_size=30).map(lambda text: f"redis://{text}"))
def test_any_url_is_read_or_refused(url):
    try:
        address = read_address(url)
    except ConfigError:
        return
    assert address.shown.startswith("redis://")
