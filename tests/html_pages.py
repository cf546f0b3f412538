"""What a page must be: whole, and without anything that a browser would load."""

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Finds elements that are not closed, and everything that a browser would load."""

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.tags, self.ids = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        self.loaded += [
            v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith(("#", "data:"))
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
