"""What ranks: vectors and words of one unit in one scope, derived from the store and made again at any time."""
