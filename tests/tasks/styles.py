"""One corpus of answer styles: what a sound function looks like after a model, a server or a lenient rule had its way with it.

Each is a template over a row: {prompt} and {code} are HumanEval's prompt and reference body, {program} MBPP's whole reference,
{name} the function asked for; {first} and {rest} are the reference's first line and the others.
"""

HUMANEVAL = {
    # name: (the answer, passes as lm-eval reads it, passes mended; None: depends on the row)
    "body": ("{code}\n", True, True),
    "body without a last newline": ("{code}", True, True),
    "body, blank line first": ("\n{code}\n", True, True),
    "body, comment after": ("{code}\n# That is all.\n", True, True),
    "body, next function": ("{code}\n\ndef other(x):\n    return x +\n", True, True),
    "body, next class": ("{code}\n\nclass Other:\n    pass\n", True, True),
    "body, printed": ("{code}\n\nprint({name})\n", True, True),
    "body, main guard": ("{code}\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n", True, True),
    "body, indented comment": ("    # First think.\n{code}\n", True, True),
    "body, harmless rest": ("{code}\n\nx = 1\n", True, True),
    "stripped": ("{stripped}", False, True),
    "one blank too few": (" {code}", False, True),
    "no indentation at all": ("{dedented}\n", False, True),
    "fence closed": ("{code}\n```\n", False, True),
    "fence closed, prose": ("{code}\n```\nThat was it.", False, True),
    "body, fenced": ("```python\n{code}\n```", False, True),
    "body, prose": ("{code}\n\nThis function doubles it, doesn't it?\n", False, True),
    "body, own test": ("{code}\n\nassert False\n", False, True),
    "body, half statement": ("{code}\n\nx = [1,\n", False, True),
    "body, open string": ("{code}\n\nx = '''never closed\n", False, True),
    "body, end of text": ("{code}<|endoftext|>", False, False),
    "body, raises after": ("{code}\n\nraise SystemExit\n", False, True),
    "body, import fails after": ("{code}\n\nimport no_such_package\n", False, False),
    "prose before": ("Here's the body:\n\n{code}\n", False, False),
    "whole": ("{prompt}{code}\n", False, True),
    "whole, indented docstring": ("\n{prompt}{code}\n", False, True),
    "whole, prose around": ("Here's a solution:\n\n{prompt}{code}\n\nHope it's what you wanted!", False, True),
    "whole, fenced": ("```python\n{prompt}{code}\n```\n", False, True),
    "whole, fenced, prose around": ("Sure!\n\n```python\n{prompt}{code}\n```\n\nIt's simple.", False, True),
    "whole, tildes": ("~~~\n{prompt}{code}\n~~~\n", False, True),
    "whole, two blocks": ("```bash\nls\n```\nThen\n```python\n{prompt}{code}\n```\n", False, True),
    "whole, open fence": ("```python\n{prompt}{code}\n", False, True),
    "tabs": ("{tabbed}\n", False, True),
    "carriage returns": ("{returned}\r\n", True, True),
    "null byte": ("{code}\x00\n", False, True),
    "wrong": ("    return None\n", False, False),
    "nothing": ("", False, False),
    "prose alone": ("I'm afraid I can't do that.", False, False),
}
MBPP = {
    "program": ("{program}", True, True),
    "program, done": ("{program}\n[DONE]\nmore words (", True, True),
    "program, blank lines around": ("\n\n{program}\n\n", True, True),
    "program, printed": ("{program}\n\nprint(1)\n", True, True),
    "program, main guard": ("{program}\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n", True, True),
    "program, own test": ("{program}\n\nassert False\n", False, True),
    "program, input": ("{program}\n\ninput()\n", False, True),
    "program, half statement": ("{program}\n\nx = [1,\n", False, True),
    "program, prose": ("{program}\n\nIt's simple, isn't it?\n", False, True),
    "fenced": ("```python\n{program}\n```", False, True),
    "fenced, prose around": ("Sure!\n```\n{program}\n```\nDone, isn't it?", False, True),
    "fence closed": ("{program}\n```", False, True),
    "open fence": ("```python\n{program}\n", False, True),
    "prose before": ("Here's the code:\n\n{program}\n", False, True),
    "one blank first": (" {program}", False, None),  # mended where something stands at the margin
    "begin repeated": ("[BEGIN]\n{program}\n[DONE]\n", False, True),
    "carriage returns": ("{returned}", True, True),
    "nothing": ("", False, False),
    "wrong": ("def {name}(*_):\n    return None\n", False, False),
}


def answers(styles, row):
    """name -> (answer, passes as lm-eval reads it, passes mended) for one row."""
    code = row.get("canonical_solution", row.get("code", "")).replace("\r\n", "\n").rstrip("\n")
    name = row.get("entry_point") or code.split("def ")[1].split("(")[0]
    fields = {
        "prompt": row.get("prompt", ""),
        "program": code,
        "code": code,
        "name": name,
        "stripped": code.strip(),
        "dedented": "\n".join(line.removeprefix("    ") for line in code.split("\n")),
        "tabbed": "\n".join(line.replace("    ", "\t") for line in code.split("\n")),
        "returned": code.replace("\n", "\r\n"),
    }
    return {style: (text.format(**fields), literal, mended) for style, (text, literal, mended) in styles.items()}
