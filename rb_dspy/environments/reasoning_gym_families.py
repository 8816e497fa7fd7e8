"""Which families of reasoning-gym 0.1.25 are templates here, and why the others are not.

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

_REASONS = {
    "it gives no answer of its own, so its scoring cannot be checked": """
        boxnet graph_color propositional_logic rubiks_cube rush_hour
    """,
    "its questions depend on Python's string hash: the same seed asks something else in another process": """
        isomorphic_strings list_functions polynomial_multiplication ransom_note
    """,
    "its verifier evaluates the answer as Python code, and needs letters and calls in it": """
        intermediate_integration simple_integration
    """,
    "its verifier accepts wrong answers, such as nan, or every text but one": """
        coin_flip complex_arithmetic game_of_life_halting puzzle24
    """,
    "its verifier raises on most wrong answers": "prime_factorization",
    "its questions have over 5,000 characters, or are recorded, not generated": "arc_agi codeio rectangle_count",
    "it prints to standard output": "bf tower_of_hanoi",
    "a mixture of other families; it has no questions of its own": "composite",
}

EXCLUDED: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""The families that are left out, and why."""
