"""Every error treadle raises on purpose.

    TreadleError
    ├── RequestError        the caller's fault, answered with a 4xx status
    │   ├── InvalidRequest      400: a field is wrong
    │   ├── PromptTooLong       400: the prompt does not fit the window or the KV pool
    │   └── ModelNotFound       404: the request names a model that is not served
    ├── OverloadError       503: try again later
    ├── EngineError         500: the engine failed or is gone; it answers everybody and stops
    └── StartError          nothing is served yet: a bad model file, setting or machine
        └── ModelFileError      the message names file and field

Input is validated once, before the queue, so everything behind the queue may assume it is right.
"""

from __future__ import annotations


class TreadleError(Exception):
    """Base of all errors raised on purpose; `status` is the HTTP status that answers it."""

    status = 500
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(TreadleError):
    """The request cannot be served as it stands, whatever the load."""

    status = 400


class InvalidRequest(RequestError, ValueError):
    """A field has a wrong type or value; `param` names the field."""


class PromptTooLong(RequestError, ValueError):
    """Prompt and answer do not fit the model's window or the KV pool."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"


class OverloadError(TreadleError):
    """The server is starting, stopping or full."""

    status = 503


class EngineError(TreadleError):
    """The engine failed; the requests it held are lost."""

    status = 500


class StartError(TreadleError):
    """Start-up cannot go on: the setting, the machine or the model does not fit."""


class ModelFileError(StartError):
    """A model file is missing, damaged or not supported."""
