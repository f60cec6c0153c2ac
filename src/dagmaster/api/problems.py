"""Problem details of the API: those of `dagmaster.web.validation`, which the gateway uses too."""

from dagmaster.web.validation import PROBLEMS, register, responses

__all__ = ["PROBLEMS", "register", "responses"]
