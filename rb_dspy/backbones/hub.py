"""A model file from the Hugging Face hub: one attempt, a short wait to connect, and then as long as it takes."""

from __future__ import annotations

from rb_dspy.backbones.download import CHUNK, Partial, SourceUnavailable
from rb_dspy.backbones.models import HubFile, ModelSpec, Progress

CONNECT_SECONDS = 4.0
"""How long an unreachable hub may hold up the next source."""

READ_SECONDS = 30.0


def fetch(spec: ModelSpec, file: HubFile, partial: Partial, report: Progress) -> None:
    """Stream the file into ``partial``. Raises ``SourceUnavailable`` where the hub cannot serve it."""
    try:
        import httpx
        from huggingface_hub import constants, hf_hub_url
    except ImportError:
        raise SourceUnavailable("huggingface-hub is not installed: `pip install rb-dspy[local]`") from None
    if constants.HF_HUB_OFFLINE:
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    report(0, spec.size, "connecting to the hub")
    url = hf_hub_url(file.repo, file.file, revision=file.revision)
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    try:
        with httpx.stream("GET", url, timeout=timeout, follow_redirects=True) as response:
            response.raise_for_status()
            length = response.headers.get("content-length")
            if length is not None and int(length) != spec.size:
                # A proxy's page, most likely: not worth a download that the hash would refuse.
                raise SourceUnavailable(f"it offers {length} bytes, not {spec.size}")
            partial.start()
            for done in partial.append(response.iter_bytes(CHUNK)):
                report(done, spec.size, "downloading from the hub")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ImportError, ValueError) as error:  # the last two: odd proxies
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise  # the disk, not the network
        raise SourceUnavailable(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    if partial.size != spec.size:
        raise SourceUnavailable(f"the download ended at {partial.size:,} of {spec.size:,} bytes")
