"""Reading pages as a browser does."""

from html.parser import HTMLParser

VOID = {"img", "meta"}
HOSTILE = "<script>alert(1)</script>\"'&><img src=x onerror=y>"


class Page(HTMLParser):
    """The elements and texts of a page; fails if it is not well-formed, has a script or loads anything."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form", "a"}, tag
        found = dict(attributes)
        assert len(found) == len(attributes)
        for name, value in found.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in {"src", "href", "srcset", "action", "data", "xlink:href", "poster"}:
                assert value.startswith("data:image/png;base64,"), value
        assert "url(" not in found.get("style", "")
        self.elements.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open[-1:] == ["style"]:
            assert "url(" not in data and "@import" not in data
        elif data.strip():
            self.texts.append(data)

    def all(self, tag):
        return [attributes for each, attributes in self.elements if each == tag]

    @property
    def text(self):
        return "\n".join(self.texts)


def points_of(page):
    """The polylines of a page, as lists of (x, y)."""
    lines = [line["points"] for line in page.all("polyline")]
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]
