"""Constraint text: one parser and one writer, in the grammar of the Python language.

`tokens` (text to tokens), `words` (the functions of the language), `operations` (its operators), `parser`
(tokens to constraints), `display` (the notation of reports), `mentions` (what is named, and whether anybody
declared it), `writer` (constraints to text), `errors` (what is wrong, and where).

>>> constraint = parse_constraint("fnr(label=1, race=*) <= 0.2")
>>> format_constraint(constraint)
'false_negative_rate(race=*) <= 0.2'
"""

from ratewise.grammar.errors import GrammarError
from ratewise.grammar.parser import parse_constraint
from ratewise.grammar.writer import format_constraint

__all__ = ["GrammarError", "format_constraint", "parse_constraint"]
