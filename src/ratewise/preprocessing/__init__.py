"""Private column statistics and the feature transformations derived from them."""
