# SPDX-License-Identifier: Apache-2.0
"""embed_page.py PAGE.html: prints the C file that runtime/server/server_page.h declares.

The style sheet and the script that the page names, beside it, become part of it: one file, which needs no other. The
policy allows these two, by their hashes, and nothing else."""

import base64
import hashlib
import os
import re
import sys

from embed_sources import literal

STYLE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">')
SCRIPT = re.compile(r'<script src="([\w.-]+)"></script>')


def source(text):
    """The source expression of a policy that allows an element with this text."""
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def insert(page, pattern, name, folder):
    """(page with the text of the one file that the pattern names in an element of its own, the text)."""
    found = pattern.findall(page)
    if len(found) != 1:
        raise SystemExit("expected one %s of the page in a file of its own, found %d" % (name, len(found)))
    with open(os.path.join(folder, found[0]), encoding="utf-8", newline="") as file:
        text = file.read()
    if "</" + name in text:
        raise SystemExit("%s: expected no '</%s', which ends the element, in its text" % (found[0], name))
    return pattern.sub(lambda match: "<%s>%s</%s>" % (name, text, name), page), text


def policy(style, script):
    return "; ".join(("default-src 'none'", "script-src " + source(script), "style-src " + source(style),
                      "img-src data:", "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
                      "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"))


def main(path):
    with open(path, encoding="utf-8", newline="") as file:
        page = file.read()
    page, style = insert(page, STYLE, "style", os.path.dirname(path))
    page, script = insert(page, SCRIPT, "script", os.path.dirname(path))
    print('#include "runtime/server/server_page.h"\n\nconst char server_page[] =')
    print("\n".join("    " + literal(line) for line in page.split("\n")[:-1]) + ";")
    print("const size_t server_page_bytes = sizeof server_page - 1;")
    print('const char server_page_policy[] = "%s";' % policy(style, script))


if __name__ == "__main__":
    main(sys.argv[1])
