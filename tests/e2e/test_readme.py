"""How the README's examples are found. `test_chat_sessions.py` runs them."""

from __future__ import annotations

from tests.e2e.readme import Example, examples

DOCUMENT = """
Text with `curl` in it.

```bash
make serve        # sets everything up
```

```bash
curl http://127.0.0.1:8000/v1/models
curl -N http://127.0.0.1:8000/v1/completions \\
  -d '{"prompt": "a",
       "n": 1}'   # streamed
curl -X DELETE http://127.0.0.1:8000/v1/sessions/a # 404: it never was
```

```python
curl = "no command"
```
"""


def test_commands_go_over_lines_and_tell_their_status() -> None:
    at = "http://127.0.0.1:8000"
    assert examples(DOCUMENT) == [
        Example(("curl", f"{at}/v1/models"), None),
        Example(("curl", "-N", f"{at}/v1/completions", "-d", '{"prompt": "a",\n       "n": 1}'), None),
        Example(("curl", "-X", "DELETE", f"{at}/v1/sessions/a"), 404),
    ]
