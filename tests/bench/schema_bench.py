# SPDX-License-Identifier: Apache-2.0
"""Whatever is drawn under the mask of a JSON Schema is a document of it, and what the masks cost.

    schema_bench.py GRAMMAR_BENCH TOKENIZER [--count 1000] [--seed 1] [--rounds 5] [--engserve ENGSERVE ENGINE]

Makes schemas at random of the kinds that JSON Schema's test suite has for draft 2020-12, --count that are supported; those that are refused
are counted by the kind. GRAMMAR_BENCH follows --rounds random outputs of each, every token drawn evenly among those that the mask allows,
and prints the times of masks. Each output must be a document of its schema by the Python package jsonschema, which the interpreter that
runs this needs with its extra `format`.

With an engine of tests/models/fables or another, engserve answers a request for each schema, too, and its answers are checked likewise.
Then it answers with and without a format that allows every text: the answers must be the same ones, greedy and seeded. min_p leaves out
what no format allows, special tokens and bytes that are no text, which a seeded answer without a format draws now and then.
Exit code: 0; 1: an output is no document of its schema, or an answer differs.
"""

import argparse
import collections
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile

import jsonschema

NAMES = ["a", "b", "name", "value", "x-y", "caf\u00e9", "quote\"d", "back\\slash", "new\nline", "__proto__", "0", "", "\U0001f600"]
VALUES = [None, True, False, 0, 1, -1, 1.5, 1e3, "", "text", "caf\u00e9 \U0001f600", "a\"b\\c\n\t", "\u2028", [], [0], [False], [[]], {}, {"a": None},
          {"a": [1, {"b": "c"}]}, 9007199254740993, 1.0, [0.0], {"a": [1.0, {"b": "c"}]}]
PATTERNS = ["^a*$", "a+", "^[A-Z]{2,3}-[0-9]{4}$", "^(foo|bar)?$", "[0-9]{3}", "^\\w+ \\w+$", "^\u00e9+$", "x$", "^(a|b(c|d)*)e$", "^[^\"\\\\]*$"]
FORMATS = ["date", "time", "date-time", "duration", "uuid", "email", "ipv4", "ipv6", "hostname", "uri"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


class Kinds:
    """A function for each kind of schema; `depth` bounds the nesting."""

    def __init__(self, rng):
        self.rng = rng
        self.nested = [self.type, self.types, self.enum, self.const, self.bounds, self.multiple_of, self.length, self.pattern, self.format,
                       self.items, self.prefix_items, self.properties, self.additional, self.any_of]
        self.all = self.nested + [self.one_of, self.all_of, self.reference, self.recursion, self.boolean, self.annotations, self.not_, self.condition,
                                  self.contains, self.pattern_properties, self.property_names, self.dependent, self.property_count,
                                  self.unevaluated, self.unique, self.anchor, self.strings, self.kinds, self.filtered, self.counts_of_names,
                                  self.contains_beside, self.mutual_recursion, self.reference_beside, self.required_once, self.one_of_beside, self.merged]

    def inner(self, depth):
        return self.rng.choice(self.nested if depth > 0 else self.nested[:9])(depth - 1)

    def name(self):
        return self.rng.choice(NAMES)

    def type(self, _):
        return {"type": self.rng.choice(TYPES)}

    def types(self, _):
        return {"type": self.rng.sample(TYPES, self.rng.randrange(1, 4))}

    def enum(self, _):
        return {"enum": self.rng.sample(VALUES, self.rng.randrange(1, 6))}

    def const(self, _):
        return {"const": self.rng.choice(VALUES)}

    def bounds(self, _):
        rng = self.rng
        schema = {"type": rng.choice(["integer", "number"])}
        least = rng.choice([-10**12, -1000, -3, -0.5, 0, 1, 1.25, 7, 10**9])
        if rng.random() < 0.7:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = least
        if rng.random() < 0.7:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = least + rng.choice([1, 2.5, 10, 255, 10**6])
        return schema

    def multiple_of(self, _):
        return {"type": "integer", "multipleOf": self.rng.choice([1, 2, 3, 7, 10, 0.01])}

    def length(self, _):
        least = self.rng.randrange(4)
        return {"type": "string", **self.rng.choice([{"minLength": least}, {"maxLength": least + 3}, {"minLength": least, "maxLength": least + 9}])}

    def pattern(self, _):
        return {"type": "string", "pattern": self.rng.choice(PATTERNS)}

    def format(self, _):
        return {"type": "string", "format": self.rng.choice(FORMATS)}

    def items(self, depth):
        schema = {"type": "array", "items": self.rng.choice([self.inner(depth), self.inner(depth), False])}
        if self.rng.random() < 0.5:
            schema["minItems"] = self.rng.randrange(3) if schema["items"] else 0
        if self.rng.random() < 0.5:
            schema["maxItems"] = schema.get("minItems", 0) + self.rng.randrange(4)
        return schema

    def prefix_items(self, depth):
        schema = {"type": "array", "prefixItems": [self.inner(depth) for _ in range(self.rng.randrange(1, 4))]}
        if self.rng.random() < 0.6:
            schema["items"] = self.rng.choice([False, self.inner(depth)])
        return schema

    def properties(self, depth):
        names = self.rng.sample(NAMES, self.rng.randrange(1, 5))
        schema = {"type": "object", "properties": {name: self.inner(depth) for name in names}}
        if self.rng.random() < 0.7:
            schema["required"] = self.rng.sample(names, self.rng.randrange(len(names) + 1))
        if self.rng.random() < 0.3:
            schema["additionalProperties"] = False
        return schema

    def additional(self, depth):
        schema = {"type": "object", "additionalProperties": self.inner(depth)}
        if self.rng.random() < 0.5:
            schema["properties"] = {self.name(): self.inner(depth)}
        if self.rng.random() < 0.3:
            schema["required"] = [self.name()]
        return schema

    def any_of(self, depth):
        return {"anyOf": [self.inner(depth) for _ in range(self.rng.randrange(1, 4))]}

    def one_of(self, depth):
        if self.rng.random() < 0.5:
            return {"oneOf": [self.inner(depth) for _ in range(2)]}
        kinds = self.rng.sample(["circle", "label", "line"], 2)
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.inner(depth)}, "required": ["kind"],
                           "additionalProperties": False} for kind in kinds]}

    def all_of(self, depth):
        rng = self.rng
        first = self.properties(depth)
        name = rng.choice(list(first["properties"]))
        return rng.choice([{"allOf": [first, {"required": [name]}]}, {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]},
                           {"allOf": [first, {"type": "object", "properties": {name: self.inner(0)}}]}, {"allOf": [self.inner(depth), True]}])

    def reference(self, depth):
        return {"$defs": {"one": self.inner(depth), "a/b": self.inner(0), "p%q": self.inner(0)}, "type": "object", "required": ["x"],
                "properties": {"x": {"$ref": "#/$defs/one"}, "y": {"$ref": "#/$defs/a~1b"}, "z": {"$ref": "#/$defs/p%25q"}}}

    def recursion(self, depth):
        return self.rng.choice([
            {"type": "object", "properties": {"value": self.inner(depth), "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value"]},
            {"$defs": {"node": {"type": "object", "properties": {"of": self.inner(0), "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                                "required": ["of"]}}, "$ref": "#/$defs/node"}])

    def boolean(self, _):
        return self.rng.choice([True, {}, {"type": "object", "properties": {"a": True}}, {"type": "array", "prefixItems": [True], "items": False}])

    def annotations(self, depth):
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s", "title": "T", "description": "d",
                "default": 4, "examples": [1], "deprecated": False, "readOnly": True, "$comment": "none", **self.inner(depth)}

    def not_(self, depth):
        return self.rng.choice([{"type": "object", "properties": {"a": {"not": self.inner(depth)}}}, {"type": ["string", "number"], "not": self.inner(0)},
                                {"type": "string", "not": {"enum": self.rng.sample(NAMES, 3)}}, {"type": "string", "not": {"pattern": self.rng.choice(PATTERNS)}}])

    def condition(self, depth):
        return {"if": self.inner(depth), "then": self.inner(depth), "else": self.inner(depth)}

    def contains(self, depth):
        return {"type": "array", "contains": self.inner(depth)}

    def pattern_properties(self, depth):
        rng = self.rng
        schema = {"type": "object", "patternProperties": {pattern: self.inner(depth) for pattern in rng.sample(["^f", "e", "^n", "x$"], rng.randrange(1, 3))}}
        if rng.random() < 0.5:
            schema["properties"] = {self.name(): self.inner(depth)}
        if rng.random() < 0.5:
            schema["additionalProperties"] = rng.choice([False, self.inner(0)])
        return schema

    def property_names(self, _):
        names = self.rng.choice([{"maxLength": 3}, {"pattern": "^[a-z]+$"}, {"pattern": "^[a-z]", "maxLength": 4}, {"enum": NAMES[:3]}, {"not": {"enum": ["a", ""]}}])
        return {"type": "object", "propertyNames": names, "additionalProperties": self.inner(0)}

    def dependent(self, _):
        return {"type": "object", "properties": {"a": {}, "b": {}}, **self.rng.choice([
            {"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"a": {"required": ["b"], "properties": {"b": self.inner(0)}}}}])}

    def property_count(self, _):
        return {"type": "object", self.rng.choice(["minProperties", "maxProperties"]): 2}

    def unevaluated(self, _):
        return self.rng.choice([{"type": "object", "unevaluatedProperties": False}, {"type": "array", "unevaluatedItems": False}])

    def unique(self, depth):
        return {"type": "array", "uniqueItems": self.rng.random() < 0.5,
                "items": self.rng.choice([self.inner(depth), {"enum": self.rng.sample(VALUES, 4)}, {"type": "boolean"}])}

    def strings(self, _):
        rng = self.rng
        return {"type": "string", "pattern": rng.choice(PATTERNS), **rng.choice([{"minLength": 2}, {"maxLength": 3}, {"not": {"pattern": "a"}}])}

    def kinds(self, depth):
        return {"type": "object", "properties": {"kind": {"enum": ["card", "cash"]}, "value": {"type": ["integer", "string"]}}, "required": ["kind"],
                "if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["value"], "properties": {"value": self.inner(0)}},
                "else": {"properties": {"other": self.inner(depth)}}}

    def filtered(self, _):
        return {"enum": self.rng.sample(VALUES, 6), **self.rng.choice([{"minLength": 1}, {"minimum": 1}, {"not": {"const": ""}}, {"type": "number", "multipleOf": 1}])}

    def object(self, depth):
        """Any of the keywords of an object, beside each other."""
        rng, names = self.rng, self.rng.sample(NAMES, self.rng.randrange(4))
        schema = {"type": "object"}
        if names:
            schema["properties"] = {name: self.inner(depth) for name in names}
        if rng.random() < 0.4:
            schema["patternProperties"] = {pattern: self.inner(depth) for pattern in rng.sample(["^f", "e", "^n", "x$", "^a?$"], rng.randrange(1, 3))}
        if rng.random() < 0.5:
            schema["required"] = rng.sample(NAMES, rng.randrange(3))
        if rng.random() < 0.6:
            schema["additionalProperties"] = rng.choice([False, True, self.inner(0)])
        if rng.random() < 0.2:
            schema["propertyNames"] = rng.choice([{"maxLength": 4}, {"pattern": "^[a-z]*$"}, {"not": {"const": "a"}}])
        return schema

    def counts_of_names(self, depth):
        """Counts of properties beside all that names them."""
        schema = self.object(depth)
        least = max(0, len(set(schema.get("required", []))) + self.rng.randrange(-1, 2))
        return {**schema, **self.rng.choice([{"minProperties": least}, {"maxProperties": least}, {"minProperties": least, "maxProperties": least},
                                             {"minProperties": max(0, least - 1), "maxProperties": least}])}

    def contains_beside(self, depth):
        rng = self.rng
        schema = {"type": "array", "contains": self.inner(depth)}
        if rng.random() < 0.6:
            schema["items"] = rng.choice([self.inner(depth), {"anyOf": [schema["contains"], self.inner(0)]}, False])
        if rng.random() < 0.4:
            schema["prefixItems"] = [self.inner(0) for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.4:
            schema["minItems"] = rng.randrange(4)
        if rng.random() < 0.4:
            schema["maxItems"] = rng.randrange(5)
        if rng.random() < 0.2:
            schema["uniqueItems"] = True
        if rng.random() < 0.2:
            return {"allOf": [schema, {"type": "array", "contains": self.inner(0)}]}
        return schema

    def mutual_recursion(self, depth):
        """Definitions that refer to each other, at every place where a schema may be."""
        rng, names = self.rng, ["one", "two", "three"]

        def refer():
            return {"$ref": "#/$defs/" + rng.choice(names)}

        def places():
            return rng.choice([
                lambda: {"type": "array", "items": refer()}, lambda: {"type": "array", "prefixItems": [refer(), self.inner(0)], "items": refer()},
                lambda: {"type": "object", "properties": {"a": refer(), "b": refer()}, "required": rng.sample(["a", "b"], rng.randrange(2))},
                lambda: {"type": "object", "additionalProperties": refer()}, lambda: {"type": "object", "patternProperties": {"^n": refer()}},
                lambda: {"anyOf": [self.inner(0), refer()]}, lambda: {"oneOf": [{"type": "string"}, {"type": "array", "items": refer()}]},
                lambda: {"allOf": [{"type": "object", "properties": {"a": refer()}}, {"type": "object", "properties": {"a": self.inner(0), "b": refer()}}]},
                lambda: {"type": "array", "contains": refer(), "items": {"anyOf": [refer(), {"type": "null"}]}},
                lambda: {"type": "object", "properties": {"a": refer()}, "minProperties": 1, "maxProperties": 1, "additionalProperties": False}])()

        return {"$defs": {name: {"anyOf": [places(), self.inner(0)]} for name in names}, **rng.choice([refer(), places()])}

    def reference_beside(self, depth):
        """A reference beside keywords that hold, too, through a chain of others."""
        rng, first = self.rng, self.object(depth)
        return {"$defs": {"one": first, "two": {"$ref": "#/$defs/one", **rng.choice([{"minProperties": 1}, {"required": [self.name()]}, {}])},
                          "three": {"allOf": [{"$ref": "#/$defs/two"}, self.object(0)]}},
                **rng.choice([{"type": "object", "properties": {"x": {"$ref": "#/$defs/three"}}, "required": ["x"]},
                              {"$ref": "#/$defs/three", "properties": {self.name(): self.inner(0)}},
                              {"type": "array", "items": {"$ref": "#/$defs/two", "maxProperties": 2}, "maxItems": 2}])}

    def required_once(self, depth):
        """Alternatives of which one alone may hold, objects whose required names overlap."""
        rng, names = self.rng, self.rng.sample(NAMES, 3)
        beside = {"type": "object", "properties": {name: self.inner(0) for name in names}}
        alternatives = []
        for _ in range(rng.randrange(2, 4)):
            one = {"required": rng.sample(names, rng.randrange(1, 3))}
            if rng.random() < 0.5:
                one["properties"] = {name: rng.choice([self.inner(0), {"const": rng.choice(VALUES)}]) for name in rng.sample(names, rng.randrange(1, 3))}
            if rng.random() < 0.3:
                one["type"] = "object"
            if rng.random() < 0.2:
                one["additionalProperties"] = False
            alternatives.append(one)
        if rng.random() < 0.3:
            beside["additionalProperties"] = False
        if rng.random() < 0.3:
            beside["required"] = rng.sample(names, 1)
        return rng.choice([{**beside, "oneOf": alternatives}, {"oneOf": [{**beside, **one} for one in alternatives]}, {**beside, "not": alternatives[0]},
                           {**beside, "if": alternatives[0], "then": alternatives[1], "else": alternatives[-1]}, {**beside, "anyOf": alternatives}])

    def one_of_beside(self, depth):
        """Numbers, strings and arrays of which some are valid for several alternatives."""
        rng = self.rng
        make = rng.choice([self.bounds, self.length, self.enum, self.const, self.types, lambda _: {"type": "array", "maxItems": rng.randrange(3)},
                           lambda _: {"type": "array", "minItems": rng.randrange(3)}])
        beside = rng.choice([{}, {"type": ["integer", "string", "array"]}, {"minimum": 1, "maxLength": 3}, {"not": self.const(0)}])
        return {**beside, "oneOf": [make(0) for _ in range(rng.randrange(2, 4))]}

    def merged(self, depth):
        """Two schemas of any kind that both hold."""
        first, second = (self.rng.choice(self.nested + [self.object, self.contains, self.not_, self.unique])(depth - 1) for _ in range(2))
        return self.rng.choice([{"allOf": [first, second]}, {**first, "allOf": [second]}, {"anyOf": [first, second], "not": self.inner(0)},
                                {"type": "object", "properties": {"a": first}, "patternProperties": {"^a": second}, "required": ["a"]}])

    def anchor(self, depth):
        return {"$defs": {"A": {"$anchor": "here", **self.inner(depth)}}, "$ref": "#here"}


class Checker:
    """Counts checks and keeps failures."""

    def __init__(self, drawn):
        self.drawn, self.counts, self.wrong = drawn, collections.Counter(), []
        self.validators = [jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER) for _, schema in drawn]

    def check(self, number, text, what):
        kind, schema = self.drawn[number]
        self.counts[what] += 1
        try:
            self.validators[number].validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            self.wrong.append("%s: %s: %s: %s (%s)" % (what, kind, json.dumps(schema), text, str(error).split("\n", 1)[0]))


def run_bench(arguments, folder, schemas, rounds):
    """Returns what it prints, and (number of the schema, "output" or "refused", text) of each line that it writes."""
    sources, outputs = os.path.join(folder, "schemas"), os.path.join(folder, "outputs")
    with open(sources, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(schema) + "\n" for _, schema in schemas)
    done = subprocess.run([arguments.grammar_bench, arguments.tokenizer, str(rounds), str(arguments.seed), sources, outputs], check=True,
                          stdout=subprocess.PIPE, text=True)
    with open(outputs, encoding="utf-8", newline="\n") as file:
        lines = [line.split(" ", 2) for line in file.read().split("\n") if line]
    return done.stdout, [(int(number), what, text) for number, what, text in lines]


def draw(arguments, folder):
    """--count schemas that are supported, as (kind, schema), after a count of those that were refused."""
    rng, supported, refused = random.Random(arguments.seed), [], collections.Counter()
    kinds = Kinds(rng)
    while len(supported) < arguments.count:
        drawn = [(kind.__name__, kind(2)) for kind in kinds.all for _ in range(5)]
        gone = {number: text for number, what, text in run_bench(arguments, folder, drawn, 1)[1] if what == "refused"}
        supported += [one for number, one in enumerate(drawn) if number not in gone]
        for number in gone:
            refused[drawn[number][0]] += 1
    print("refused of each kind: %s" % dict(sorted(refused.items())))
    rng.shuffle(supported)
    return supported[:arguments.count]


class Server:
    def __init__(self, engserve, engine):
        self.process = subprocess.Popen([engserve, "model=" + engine, "--port", "0", "--quiet"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        host, port = line.strip().rsplit("http://", 1)[1].rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=600)

    def answer(self, **body):
        """(text, reason for its end); a refusal is an error."""
        body = {"model": "model", "max_tokens": 200, "temperature": 1, **body}
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = json.loads(self.connection.getresponse().read())
        if "error" in reply:
            return None, reply["error"]["message"]
        return reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]


def check_server(arguments, checker):
    server = Server(*arguments.engserve)
    for number, (_, schema) in enumerate(checker.drawn):
        text, end = server.answer(prompt="Once upon a time", guided_json=schema, seed=number)
        if end == "stop":
            checker.check(number, text, "answers of the model")
        else:
            checker.counts["answers cut at max_tokens" if end == "length" else "answers refused: " + end] += 1
    for seed in range(200):
        body = {"prompt": "The %s" % ("wolf", "fox", "lamb", "crow")[seed % 4], "max_tokens": 60, "seed": seed, "temperature": seed % 2, "min_p": 0.02}
        plain, guided = server.answer(**body), server.answer(guided_regex="[\\s\\S]*", **body)
        checker.counts["answers with all allowed"] += 1
        if plain != guided:
            checker.wrong.append("all allowed: %s: %s, without %s" % (body, guided, plain))
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("grammar_bench")
    parser.add_argument("tokenizer")
    for name, default in (("--count", 1000), ("--seed", 1), ("--rounds", 5)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--engserve", nargs=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(draw(arguments, folder))
        printed, lines = run_bench(arguments, folder, checker.drawn, arguments.rounds)
    print(printed, end="")
    for number, what, text in lines:
        assert what == "output", text
        checker.check(number, text, "random outputs")
    if arguments.engserve:
        check_server(arguments, checker)
    print("%d schemas: %s; %d wrong" % (len(checker.drawn), ", ".join("%d %s" % (count, what) for what, count in checker.counts.items()),
                                        len(checker.wrong)))
    for wrong in checker.wrong[:20]:
        print(wrong[:1500], file=sys.stderr)
    return int(bool(checker.wrong))


if __name__ == "__main__":
    sys.exit(main())
