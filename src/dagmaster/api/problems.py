"""Problem details of the API, as all JSON servers send them."""

from dagmaster.web.validation import PROBLEMS, register, responses

__all__ = ["PROBLEMS", "register", "responses"]
