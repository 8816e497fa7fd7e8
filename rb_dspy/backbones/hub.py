"""A model file from the Hugging Face hub: a short wait to connect, and then as long as it takes, also in several calls.

``hf_hub_download`` (1.33) begins anew in every call, and asks a hub that cannot be reached several times.
"""

from __future__ import annotations

from rb_dspy.backbones.download import CHUNK, Partial, SourceUnavailable
from rb_dspy.backbones.models import DownloadProgress, HubFile, ModelSpec
from rb_dspy.wording import first_line

CONNECT_SECONDS = 4.0
"""How long an unreachable hub may hold up the next source."""

READ_SECONDS = 30.0


def fetch(spec: ModelSpec, file: HubFile, partial: Partial, report: DownloadProgress) -> None:
    """Stream the file into ``partial``, from where an earlier, interrupted call has stopped.

    Where the connection breaks, another is made, for as long as each gets further.

    Raises ``SourceUnavailable`` where the hub cannot serve it.
    """
    try:
        import httpx
        from huggingface_hub import constants, hf_hub_url
    except ImportError:
        raise SourceUnavailable("huggingface-hub is not installed: `pip install rb-dspy[local]`") from None
    if constants.HF_HUB_OFFLINE:
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    url = hf_hub_url(file.repo, file.file, revision=file.revision)
    have = partial.left()
    if have == spec.size:
        partial.start(keep=have)
    while partial.size < spec.size:
        report(have, spec.size, "connecting to the hub")
        try:
            _go_on(url, partial, have, report)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ImportError, ValueError) as error:
            # The last two: odd proxies.
            if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
                raise  # the disk, not the network
            if partial.size <= have:
                raise SourceUnavailable(first_line(error, kind=True)) from error
            have = partial.size
        else:
            if partial.size != spec.size:
                raise SourceUnavailable(f"the download ended at {partial.size:,} of {spec.size:,} bytes")


def _go_on(url: str, partial: Partial, have: int, report: DownloadProgress) -> None:
    """One connection: the bytes after the first ``have``; all of them from a server that gives no part of a file."""
    import httpx

    size = partial.spec.size
    asked = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {}  # of a revision that is pinned
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    with httpx.stream("GET", url, headers=asked, timeout=timeout, follow_redirects=True) as response:
        response.raise_for_status()
        begin = have if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
        length = response.headers.get("content-length")
        if length is not None and int(length) != size - begin:
            # A proxy's page, most likely: not worth a download that the hash would refuse.
            raise SourceUnavailable(f"it offers {int(length) + begin} bytes, not {size}")
        partial.start(keep=begin)
        for done in partial.append(response.iter_bytes(CHUNK)):
            report(done, size, "downloading from the hub")
