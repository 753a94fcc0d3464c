"""The former name of `levytorch.files`."""

from levytorch.files import (  # noqa: F401
    LARGEST,
    check_packed,
    load_tensors,
    lookup,
    read_json,
    read_settings,
    read_yaml,
)
