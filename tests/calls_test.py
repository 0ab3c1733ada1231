# SPDX-License-Identifier: Apache-2.0
"""Checks that calls between object files lead one way: in the libraries as linked, no set of object files calls each other
in a circle. tests/architecture_test.py checks the same for includes, by source."""

import glob
import os
import subprocess
import sys
import unittest

LIBRARIES = ("formats", "kernels", "tuner", "builder", "runtime")


def symbols_of(library, listing):
    """{object: (defined, used)} from the output of `nm -P` over an archive. Objects of equal names get a number."""
    objects, current = {}, None
    for line in listing.split("\n"):
        if line.endswith("]:"):
            name = line[line.rindex("[") + 1:-2]
            for suffix in (".o", ".pic"):
                name = name[:-len(suffix)] if name.endswith(suffix) else name
            unit, number = "%s/%s" % (library, name), 2
            while unit in objects:
                unit, number = "%s/%s (%d)" % (library, name, number), number + 1
            current = objects[unit] = (set(), set())
        elif current and len(line.split()) >= 2:
            symbol, kind = line.split()[:2]
            # Lower case: local to its object. U, and w where it may be absent: defined elsewhere.
            current[kind in "Uw"].update({symbol} if kind in "Uw" or kind.isupper() else ())
    return objects


def arrows_of(objects):
    """{object: {other object: symbols that the first takes from it}}."""
    owners = {symbol: unit for unit, (defined, _) in objects.items() for symbol in defined}
    arrows = {unit: {} for unit in objects}
    for unit, (defined, used) in objects.items():
        for symbol in used - defined:
            if owners.get(symbol, unit) != unit:
                arrows[unit].setdefault(owners[symbol], set()).add(symbol)
    return arrows


def reachable(arrows, start):
    seen, walk = set(), list(arrows[start])
    while walk:
        unit = walk.pop()
        if unit not in seen:
            seen.add(unit)
            walk.extend(arrows[unit])
    return seen


def circles_of(arrows):
    """The largest sets of objects of which each reaches each other."""
    reach = {unit: reachable(arrows, unit) for unit in arrows}
    circles = {frozenset(other for other in reach[unit] if unit in reach[other]) for unit in arrows if unit in reach[unit]}
    return sorted(circles, key=sorted)


def defects_of(arrows):
    for circle in circles_of(arrows):
        yield "; ".join("%s -> %s: %s" % (unit, other, ", ".join(sorted(arrows[unit][other])))
                        for unit in sorted(circle) for other in sorted(set(arrows[unit]) & circle))


def archives():
    root = os.path.join(os.environ["TEST_SRCDIR"], os.environ.get("TEST_WORKSPACE", "eng"))
    for library in LIBRARIES:
        # A release build has each archive twice, for programs and (pic) for shared libraries. alwayslink names it .lo.
        found = sorted(path for path in glob.glob(os.path.join(root, library, "lib*"))
                       if path.endswith((".a", ".lo")) and not path.endswith((".pic.a", ".pic.lo")))
        if not found:
            raise AssertionError("%s: no archive among the test's files" % os.path.join(root, library))
        for path in found:
            yield library, path


class Libraries(unittest.TestCase):
    def test_calls_lead_one_way(self):
        objects = {}
        for library, path in archives():
            listing = subprocess.run(["nm", "-P", path], check=True, capture_output=True, text=True).stdout
            found = symbols_of(library, listing)
            self.assertGreater(len(found), 10, "%s: too few object files" % path)
            objects.update(found)
        arrows = arrows_of(objects)
        self.assertGreater(sum(len(others) for others in arrows.values()), len(objects))
        defects = list(defects_of(arrows))
        self.assertEqual(defects, [], "\n" + "\n".join(defects))


class Planted(unittest.TestCase):
    LISTING = "\n".join([
        "lib/libx.a[a.pic.o]:", "a_open T 0 8", "helper t 8 8", "b_read U", "memcpy U", "",
        "lib/libx.a[b.o]:", "b_read T 0 8", "helper t 8 8", "c_table U", "",
        "lib/libx.a[b.o]:", "c_table D 0 8", "%s U", ""])

    def test_one_way(self):
        objects = symbols_of("tuner", self.LISTING % "memcpy")
        self.assertEqual(set(objects), {"tuner/a", "tuner/b", "tuner/b (2)"})
        self.assertEqual(arrows_of(objects)["tuner/a"], {"tuner/b": {"b_read"}})
        self.assertEqual(list(defects_of(arrows_of(objects))), [])

    def test_circle(self):
        for symbol, size in (("a_open", 3), ("b_read", 2)):
            with self.subTest(symbol=symbol):
                arrows = arrows_of(symbols_of("tuner", self.LISTING % symbol))
                self.assertEqual([len(circle) for circle in circles_of(arrows)], [size])
                self.assertIn(symbol, list(defects_of(arrows))[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
