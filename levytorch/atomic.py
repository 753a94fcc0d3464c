"""The former name of `levytorch.files`."""

from levytorch.files import (  # noqa: F401
    check_place,
    move_directory,
    path_of,
    remove_leftovers,
    replacing,
    save,
    temporary_directory,
    unwritable,
)
