"""Requests to the Hugging Face hub: retried after transient errors, with downloads checked, and other errors reduced to one line.

No message contains an access token.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from draftlab.errors import UserError, first_line
from draftlab.files.atomic import is_disk_full

T = TypeVar("T")
Kind = Literal["model", "dataset"]

WAITS = (1.0, 5.0, 30.0)
"""Seconds before each retry. Within an attempt the hub's library itself resumes downloads and waits when the hub asks it to."""

ABANDONED = 3600.0
"""A download that has written nothing for so many seconds was killed; one that gets no answer gives up much earlier."""

PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses that mean: try again later."""


class Damaged(OSError):
    """A file of the cache that is not what was put there: what it was made of is fetched again."""


def ask(kind: Kind, name: str, request: Callable[[bool], T], *, otherwise: str) -> T:
    """Return the result of ``request`` about the repository ``name``, with retries.

    ``request`` gets True if it must download files again, because their content was not what the hub announced.

    **Raises:** ``UserError``, whose remedy ends with ``otherwise``: what to do without the hub.
    """
    from huggingface_hub import constants

    # Without a limit, Xet says nothing of an unreachable store for over 15 minutes.
    os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_DURATION", "20s")
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_without_signatures)  # the same function is added once
    again = False
    for wait in (*WAITS, None):
        try:
            try:
                return request(again)
            finally:
                _check_files(kind, name)
        except Exception as error:  # the hub's libraries, their HTTP client and Python share no base class of errors
            if wait is None or not _passes(error):
                raise _explained(kind, name, error, otherwise) from None
            again = isinstance(error, Damaged) and not constants.HF_HUB_OFFLINE
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _check_files(kind: Kind, name: str) -> None:
    """Compare cached files with the digests in their names: SHA-256 for large files, git's SHA-1 for small ones.

    Over HTTP the hub's library compares only sizes. What killed downloads left is removed, because the library resumes none of it.
    """
    from huggingface_hub import constants

    blobs = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}" / "blobs"
    for blob in sorted(blobs.glob("*")):
        if blob.suffix == ".incomplete":
            with contextlib.suppress(OSError):  # its download may end now
                if time.time() - blob.stat().st_mtime > ABANDONED:
                    blob.unlink()
        if not (re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name) and blob.is_file()):  # a link may lead nowhere
            continue
        whole = hashlib.sha256() if len(blob.name) == 64 else hashlib.sha1(b"blob %d\0" % blob.stat().st_size)
        with blob.open("rb") as file:
            while part := file.read(1 << 20):
                whole.update(part)
        if whole.hexdigest() != blob.name:
            blob.unlink(missing_ok=True)  # it may belong to another revision, which this request would not replace
            raise Damaged(f"{blob} is not what the hub announced")


def _causes(error: BaseException) -> list[BaseException]:
    """An error and the chain of errors that caused it."""
    cause = error.__cause__ or error.__context__
    return [error, *(_causes(cause) if cause else [])]


def _passes(error: Exception) -> bool:
    """Whether a retry may succeed: the hub is busy or down, the connection failed, or a file arrived damaged."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    causes = _causes(error)
    if any(isinstance(cause, OfflineModeIsEnabled) or is_disk_full(cause) for cause in causes):
        return False

    def passes(cause: BaseException) -> bool:
        if isinstance(cause, HfHubHTTPError):
            return cause.response.status_code in PASSING
        return isinstance(cause, (HTTPError, Damaged)) or type(cause) is RuntimeError  # Xet raises plain RuntimeError

    return any(map(passes, causes))


def _explained(kind: Kind, name: str, error: Exception, otherwise: str) -> UserError:
    """Turn an error of the hub into a ``UserError`` that says what failed and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    causes = _causes(error)
    page = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{name}"
    unreadable: tuple[type[Exception], ...] = ()
    absent: tuple[type[Exception], ...] = (RepositoryNotFoundError, RevisionNotFoundError)
    if kind == "dataset":  # its library tries other revisions, so a missing one is not an error here
        from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

        unreadable = (DatasetGenerationError,)
        absent = (RepositoryNotFoundError, DatasetNotFoundError)
    if full := next((cause for cause in causes if is_disk_full(cause)), None):
        what = f"cannot write {kind} {name} to the hub's cache {constants.HF_HUB_CACHE}: {_public(full)}"
        return UserError(what, remedy="free space, or name a larger disk with HF_HOME, and run again")
    if denied := next((cause for cause in causes if _is_denied(cause)), None):
        what = f"cannot use the cache of {kind} {name}: {_public(denied)}"
        remedy = "allow reading and writing there, or name another folder with HF_HOME, and run again"
        return UserError(what, remedy=remedy)
    refusal = next((cause for cause in causes if isinstance(cause, absent)), None)
    if refusal is None:
        reason, remedy = _failure(error, page, unreadable)
    elif isinstance(refusal, GatedRepoError) or "is a gated dataset" in str(refusal):
        reason = "it is gated"
        remedy = f"ask for access at {page}, then log in once with: hf auth login"
    else:
        reason = "it does not exist or is private"
        remedy = "check its name and revision, log in with: hf auth login"
    what = f"cannot read {kind} {name} from the hub or its local cache: {reason}"
    return UserError(what, remedy=f"{remedy}, or {otherwise}")


def _failure(error: Exception, page: str, unreadable: tuple[type[Exception], ...]) -> tuple[str, str]:
    """Why a repository that may well exist could not be read, and what to do; ``unreadable``: errors for files that are broken there."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    causes = _causes(error)
    # The error of the hub or the network, even if a library raised another one afterwards.
    cause = next((cause for cause in causes if isinstance(cause, HTTPError)), error)
    remedy = "unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "check the network"
    status = getattr(getattr(cause, "response", None), "status_code", 0)
    if status in (401, 403):
        remedy = "check your token with: hf auth login, and the network"
    elif status == 429:  # who is logged in may ask more often
        remedy = "run again in some minutes, log in with: hf auth login"
    elif any(isinstance(cause, json.JSONDecodeError) for cause in causes):
        return "the answer is not the hub's, but perhaps a page of a proxy", remedy
    elif isinstance(cause, unreadable):  # the first line of its message gives no reason
        lines = [line for said in (cause, cause.__cause__) for line in str(said).splitlines() if line]
        return without_token([*lines, type(cause.__cause__).__name__][1]), f"check the files at {page}"
    elif "CAS Client Error" in str(error):  # of the store from which Xet fetches
        remedy = "check the network, set HF_HUB_DISABLE_XET=1"
    return _public(cause), remedy


def _is_denied(error: BaseException) -> bool:
    """Whether a file or folder may not be read or written. A connection that is refused names no file."""
    denied = (errno.EACCES, errno.EPERM, errno.EROFS)
    return isinstance(error, OSError) and error.errno in denied and error.filename is not None


def _public(error: BaseException) -> str:
    """The first line of an error's message, without any access token."""
    return without_token(first_line(error))


def without_token(text: str) -> str:
    """Replace the hub's access token in ``text``, anything that looks like one, and the signatures of addresses."""
    from huggingface_hub import get_token

    text = re.sub(r"hf_\w+", "hf_…", text.replace(get_token() or "\0", "…"))
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1?…", text)


def _without_signatures(record: logging.LogRecord) -> bool:
    """Take tokens out of what the hub's library logs: it names the signed address of every file that it tries again."""
    record.msg, record.args = without_token(record.getMessage()), ()
    return True
