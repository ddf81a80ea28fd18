"""Extension of griffe for the site: examples in docstrings (`>>>`) become code blocks of Markdown."""

import griffe


class FenceExamples(griffe.Extension):
    """Puts a fence around each run of lines that starts with `>>>` and ends at an empty line."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring is None:
            return
        lines, inside = [], False
        for line in obj.docstring.value.splitlines():
            if not inside and line.startswith(">>>"):
                lines += ["", "```pycon"]
                inside = True
            elif inside and not line.strip():
                lines.append("```")
                inside = False
            lines.append(line)
        obj.docstring.value = "\n".join(lines + ["```"] * inside)
