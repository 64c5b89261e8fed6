"""Rate constraints: rates, families, constraint text, and their compiled form.

=================  =============================================================================
`rates`            predicates (which rows: `group`, `label`, ``&``, ``|``, ``~``), prediction rates of these
                   rows, their linear combinations, and bounds on them
`families`         constraint families, one class each, and their registry
`text`             constraints as text: parser and writer
`domain`           the public classes and column values, and the coding of rows by them
`partition`        the smallest partition of the rows into cells
`compiled`         declarations in any form, compiled on a domain; their values and weights
`feasibility`      constraints that no classifier can meet, whatever the data
=================  =============================================================================

Nothing in this package releases anything about rows, and nothing imports from the layers above it.
"""
