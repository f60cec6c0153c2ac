"""The URLs that a submission names for its callbacks: one for all, or a subscriber with one for each kind."""

from dagmaster.errors import InvalidRequest
from dagmaster.jobs.model import Submission, Subscriber


def main_callback_url(callback_url: str | None, subscriber: Subscriber | None) -> str | None:
    """The URL for all callbacks that are not sent to another URL of a subscriber."""
    return callback_url if subscriber is None else subscriber.successUri


def callback_urls(submission: Submission) -> dict[str, str]:
    """All URLs for callbacks, by the names of their fields."""
    if submission.subscriber is None:
        return {} if submission.callback_url is None else {"callback_url": submission.callback_url}
    if submission.callback_url is not None:
        raise InvalidRequest(
            "both `callback_url` and `subscriber` were sent",
            code="submission.two-callbacks",
            hint="send `callback_url` for all callbacks, or `subscriber` with a URL for each kind",
        )
    return {f"subscriber.{name}": url for name, url in submission.subscriber.urls.items()}
