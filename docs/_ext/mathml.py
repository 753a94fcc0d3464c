"""Formulas as MathML, which browsers draw by themselves: no script, and no fonts from elsewhere."""

from docutils.nodes import SkipNode
from latex2mathml.converter import convert


def visit_math(self, node):
    self.body.append(convert(node.astext(), display="inline"))
    raise SkipNode


def visit_block(self, node):
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
