"""The key that a client sends: the chosen one, that of the environment, or the one that `dagmaster login` stored.

    ~/.config/dagmaster/credentials.json    {"<URL of the API, or folder of the local platform>": "<key>"}

DAGMASTER_CREDENTIALS and XDG_CONFIG_HOME choose another place for the file. Only its owner may read it. A stored key is
sent only to the platform for which it was stored.
"""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from dagmaster.client.discovery import data_folder
from dagmaster.errors import InvalidRequest, NotAllowed
from dagmaster.settings import Settings

_MAX_FILE_BYTES = 1024 * 1024


def key_for(settings: Settings, *, server: str | None = None, chosen: str | None = None) -> str | None:
    """The key for the API at `server`, or for the platform that commands use."""
    key = chosen or settings.api_key or _stored(settings.credentials()).get(platform_name(settings, server))
    if key is not None and (not key.isascii() or not key.isprintable() or " " in key):
        raise InvalidRequest(
            "the key has characters that are not allowed in a key or token",
            code="key.invalid",
            hint="copy the key again",
        )
    return key


def platform_name(settings: Settings, server: str | None) -> str:
    """The name under which the key of a platform is stored: its URL, or the data folder of a local platform."""
    url = server or settings.server_url
    if not url:
        return str(data_folder(settings))
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}".lower()


def store_key(settings: Settings, server: str | None, key: str) -> Path:
    """Store a key for later commands. Returns the file."""
    return _write(settings.credentials(), {**_stored(settings.credentials()), platform_name(settings, server): key})


def forget_key(settings: Settings, server: str | None) -> bool:
    """Remove the stored key of a platform. Returns whether there was one."""
    file = settings.credentials()
    keys = _stored(file)
    if keys.pop(platform_name(settings, server), None) is None:
        return False
    _write(file, keys)
    return True


def _stored(file: Path) -> dict[str, str]:
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(_MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise NotAllowed(f"{file} cannot be read: {error.strerror}", code="credentials.unreadable") from None
    if mode & 0o077:
        raise NotAllowed(
            f"other users may read {file}, which contains keys",
            code="credentials.exposed",
            hint=f"run `chmod 600 {file}`, and rotate the keys if others have read them",
        )
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise InvalidRequest(
            f"{file} is not a JSON object of keys", code="credentials.invalid", hint="remove it, and log in again"
        )
    return content


def _write(file: Path, keys: Mapping[str, str]) -> Path:
    """Write a new file and move it into place, so that the file is never incomplete."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".credentials")  # mode 0600
        with os.fdopen(descriptor, "w") as opened:
            json.dump(keys, opened, indent=2)
        Path(name).replace(file)
    except OSError as error:
        raise NotAllowed(f"{file} cannot be written: {error.strerror}", code="credentials.unwritable") from None
    return file
