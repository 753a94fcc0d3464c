"""How Sphinx builds the site (`.ci/docs`). Nothing is loaded from a network, neither now nor when a page is read."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import levytorch  # noqa: E402

project = "levytorch"
author = "The levytorch developers"
copyright = "the levytorch developers"
version = release = levytorch.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",  # this and the next are in docs/_ext
    "docstrings",
    "repository",
    "options",
    "messages",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
suppress_warnings = ["myst.xref_missing"] if tags.has("draft") else []  # type: ignore[name-defined]  # noqa: F821

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
default_role = "code"

html_theme = "furo"
html_title = "levytorch"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["levytorch.css"]
html_copy_source = False
html_show_sphinx = False
