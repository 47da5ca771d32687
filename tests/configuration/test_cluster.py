"""`cluster`: what it says, what it needs beside it, and that the URL of Redis is no secret that anybody is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.admin.masking import masked_settings
from mcproxy.configuration.loading import credentials
from tests.configuration.reading import configure, problems

SECRET = "proxy: {secret: long-enough-for-a-key}\n"


def test_without_a_url_there_is_one_replica(tmp_path: Path) -> None:
    assert configure(tmp_path, "mcpServers: {}\n").settings.cluster.redis is None


def test_a_url_and_a_secret_make_a_cluster(tmp_path: Path) -> None:
    text = SECRET + "cluster: {redis: redis://127.0.0.1/3, listen: '[::1]:8101', on_loss: 404}\n"
    cluster = configure(tmp_path, text).settings.cluster
    assert (cluster.redis, cluster.address, cluster.on_loss) == ("redis://127.0.0.1/3", ("::1", 8101), "404")


@pytest.mark.parametrize(
    "url",
    [
        "rediss://u:p@h:6380/0",
        "unix:///run/redis.sock",
        "redis+sentinel://a:26379,b:26379/service/0",
        "redis+cluster://h:7000",
    ],
)
def test_every_url_that_redis_py_has_is_taken(tmp_path: Path, url: str) -> None:
    assert configure(tmp_path, f"{SECRET}cluster: {{redis: '{url}'}}\n").settings.cluster.redis == url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cluster: {redis: redis://h}\n", "needs proxy.secret"),
        (
            "proxy: {secret: long-enough-for-a-key, grant_key: keyring}\ncluster: {redis: redis://h}\n",
            "replicas share their logins",
        ),
        (SECRET + "cluster: {redis: 'http://h'}\n", "should be a URL of Redis"),
        (SECRET + "cluster: {redis: 'redis:///0'}\n", "should be a URL of Redis"),
        (SECRET + "cluster: {redis: 'unix://'}\n", "should be a URL of Redis"),
        (SECRET + "cluster: {redis: 'redis://[h'}\n", "should be a URL of Redis"),
        (SECRET + "cluster: {advertise: 'http://h:1/path'}\n", "host and port alone"),
        (SECRET + "cluster: {advertise: 'http://h:99999'}\n", "host and port alone"),
        (SECRET + "cluster: {advertise: 'https://h:1'}\n", "should begin with http://"),
        (SECRET + "cluster: {listen: '8100'}\n", "address and a port"),
        (SECRET + "cluster: {listen: 'h:x'}\n", "address and a port"),
        (SECRET + "cluster: {on_loss: 500}\n", "404"),
        (SECRET + "cluster: {tls: {key: k}}\n", "needs a certificate"),
        (SECRET + "cluster: {tls: {ca: k}}\n", "needs a certificate"),
        (SECRET + "cluster: {tls: {certificate: c}}\n", "needs the authorities"),
        (SECRET + "cluster: {tls: {certificate: missing.pem, ca: missing.pem}}\n", "missing.pem"),
    ],
)
def test_what_cannot_be_meant_is_a_problem(tmp_path: Path, text: str, says: str) -> None:
    assert says in problems(tmp_path, text)[0]


def test_r44_the_password_of_redis_is_a_secret(tmp_path: Path) -> None:
    settings = configure(tmp_path, SECRET + "cluster: {redis: 'redis://user:pass-word@h/0'}\n").settings
    found = credentials(settings)
    assert "pass-word" in found
    assert "pass-word" not in masked_settings(settings, ())
