"""What cannot be opened says so in one line, without the password."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from router.limits import open_store
from tests.router.limits.bench import ROOT, opened
from tests.services import postgres_server, redis_server
from twinspeed.errors import InputError, TwinspeedError
from twinspeed.processes import free_port

pytestmark = pytest.mark.unit


def opening_fails(url: str) -> TwinspeedError:
    async def main() -> None:
        async with opened(url):
            pass

    with pytest.raises(TwinspeedError) as caught:
        asyncio.run(main())
    message = str(caught.value)
    assert message.startswith("state.url: ")
    assert "\n" not in message
    assert "hunter2" not in message
    assert "%2" not in message
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        *("", "memory", "memory:x", "mysql://u:hunter2@h/db", "sqlite:", "sqlite:///", "sqlite:x.db"),
        *("redis://", "redis:///0", "rediss://:hunter2@", "redis://:hunter2@h:port/0", "redis://:hunter2@[::1/0"),
        *("redis://h/0?socket_timeout=hunter2", "postgresql:///db", "postgresql://u:hunter2@h:99999/db"),
    ],
)
def test_a_malformed_url_is_the_users_error(url: str) -> None:
    assert isinstance(opening_fails(url), InputError)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "postgresql"])
def test_a_server_that_is_not_there_is_named_without_the_password(scheme: str) -> None:
    port = free_port()
    assert f"at 127.0.0.1:{port}" in str(opening_fails(f"{scheme}://someone:hunter2@127.0.0.1:{port}/0"))


def test_a_server_that_refuses_the_password_is_named_without_it() -> None:
    with redis_server(None, None, "--requirepass", "other") as url:
        assert "invalid" in str(opening_fails(url.replace("redis://", "redis://:hunter2@"))).lower()
        asyncio.run(_open_and_close(url.replace("redis://", "redis://:other@")))


def test_a_database_that_does_not_exist_is_named(postgres_url: str) -> None:
    url = postgres_url.replace("twinspeed@", "twinspeed:hunter2@").replace("/postgres", "/nowhere")
    assert '"nowhere" does not exist' in str(opening_fails(url))


def test_a_url_that_asyncpg_cannot_read_is_not_quoted() -> None:
    with postgres_server() as url:
        opening_fails(f"{url.replace('twinspeed@', 'twinspeed:hunter2@')}?sslmode=hunter2")


def test_a_sqlite_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    assert isinstance(opening_fails(f"sqlite:///{tmp_path}/missing/x.db"), InputError)
    (tmp_path / "poem.txt").write_text("Shall I compare thee to a summer's day? " * 100)
    refused = opening_fails(f"sqlite:///{tmp_path}/poem.txt")
    assert isinstance(refused, InputError)
    assert "poem.txt: file is not a database" in str(refused)
    (tmp_path / "folder").mkdir()
    assert isinstance(opening_fails(f"sqlite:///{tmp_path}/folder"), InputError)


def test_a_sqlite_file_has_one_owner(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"

    async def main() -> None:
        async with opened(url):
            with pytest.raises(InputError, match="in use by another router"):
                await open_store(url).open()
            code = f"import asyncio; from router.limits import open_store; asyncio.run(open_store({url!r}).open())"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, cwd=ROOT, stderr=asyncio.subprocess.PIPE
            )
            _, errors = await process.communicate()
            assert process.returncode == 1
            assert b"InputError: state.url: " in errors
            assert b"in use by another router" in errors
        async with opened(url):
            pass

    asyncio.run(main())


def test_a_relative_path_has_three_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(_open_and_close("sqlite:///x.db"))
    assert (tmp_path / "x.db").exists()


def test_in_process_stores_load_no_client_of_a_server(tmp_path: Path) -> None:
    code = (
        "import sys; from router.limits import open_store; open_store('memory:'); open_store('sqlite:///x');"
        "assert not {'redis', 'asyncpg'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_several_routers_make_the_tables_at_once() -> None:
    async def main(url: str) -> None:
        await asyncio.gather(*(_open_and_close(url) for _ in range(5)))

    with postgres_server() as url:
        asyncio.run(main(url))


async def _open_and_close(url: str) -> None:
    async with opened(url):
        pass
