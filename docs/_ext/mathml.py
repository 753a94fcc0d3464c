"""Formulas as MathML, which browsers draw by themselves: no script, and no fonts from elsewhere.

Greek capitals are upright, as in print. A prime is written beside its letter, because it is a raised sign already: as a
superscript it would be raised and shrunk twice.
"""

import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert


def mathml(text: str, display: str) -> str:
    found = convert(text, display=display)
    found = re.sub(r"<msup>(<mi>[^<]*</mi>)<mi>(&#x0203[23];)</mi></msup>", r"<mrow>\1<mo>\2</mo></mrow>", found)
    return re.sub(r"<mi>(&#x003(?:9[0-9A-F]|A[0-9]);)</mi>", r'<mi mathvariant="normal">\1</mi>', found)


def visit_math(self, node):
    self.body.append(mathml(node.astext(), "inline"))
    raise SkipNode


def visit_block(self, node):
    self.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
