"""Two reward functions as TRL's documentation writes them. They do not know of xtrain."""


def exact_match(completions, answer, **kwargs):
    return [1.0 if text.strip() == expected.strip() else 0.0 for text, expected in zip(completions, answer)]


def digits_only(completions, **kwargs):
    """`None`: an empty completion has no reward from this function."""
    return [None if not text else float(text.strip().isdigit()) for text in completions]
