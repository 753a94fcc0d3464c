"""The former name of `levytorch.files`."""

from levytorch.files import write_csv, write_json, write_text  # noqa: F401
