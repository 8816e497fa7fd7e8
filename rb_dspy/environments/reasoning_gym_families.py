"""Which families of reasoning-gym 0.1.25 are templates here; why the others are not is in their test.

The screen, over several seeds and 300 entries a family: the family's own answer scores 1; the same seed gives the same
question in another process; no fixed answer wins everywhere; no answer runs as code or takes seconds to check; nothing
is printed; the question has a sensible length.
"""

from __future__ import annotations

_NAMES = """
    ab acre advanced_geometry aiw arc_1d base_conversion basic_arithmetic binary_alternation binary_matrix
    bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum circuit_logic color_cube_rotation count_bits
    count_primes countdown course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery
    family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd group_anagrams
    gsm_symbolic jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid n_queens needle_haystack
    number_filtering number_format number_sequence number_sorting palindrome_generation palindrome_partitioning
    path_star polynomial_equations pool_matrix power_function products quantum_lock rearc rotate_matrix
    rotten_oranges self_reference sentence_reordering shortest_path simple_equations simple_geometry sokoban
    spell_backward spiral_matrix string_insertion string_manipulation string_splitting string_synthesis sudoku
    survo syllogism time_intervals tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
"""

TEMPLATES: tuple[str, ...] = tuple(_NAMES.split())
"""The sound families, in the order in which they take turns."""

_SMALL = """
    basic_arithmetic binary_alternation chain_sum color_cube_rotation decimal_chain_sum group_anagrams
    needle_haystack number_format number_sequence palindrome_generation products
"""

SMALL_MODEL_TEMPLATES: tuple[str, ...] = tuple(_SMALL.split())
"""Families that the embedded 1.5b model solved in 1 to 3 of 4 tries: neither out of reach nor trivial."""
