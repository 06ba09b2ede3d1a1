"""Random JSON schemas out of what docs/structured_output.md says is enforced, and an independent check of answers.

schema(seed) is the same at every time. Recursive definitions can always end: they refer to themselves only where a value
may do without. Strings and lists are short, so that an answer of a few hundred tokens is often complete.
"""
import datetime
import random
import re
import urllib.parse

import jsonschema

NAMES = ("id", "name", "größe", "a b", "size", "Kind", "x1", "tags", "next", "left", "note", "über_uns", "k\"q", "z/9", "🙂")
WORDS = ("red", "green", "", "a \"quoted\" word", "naïve", "line\nfeed", "tab\t", "日本", "1", "null", "back\\slash")
PATTERNS = ("[a-z]{1,6}", "(ab|cd)+e?", "[0-9]{3}-[0-9]{4}", "[A-Z][a-z]{0,8}( [A-Z][a-z]{0,8})?", "x{2,5}", "[^0-9a-f]{1,4}")
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
DEEPEST = 4


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}
        self.open = []  # names of definitions that are being made, which may refer to themselves

    def chance(self, share):
        return self.random.random() < share

    def any(self, depth):
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
        if depth < DEEPEST:
            kinds += ["object"] * 4 + ["array"] * 3 + ["anyOf", "oneOf", "allOf", "types"] + ["ref"] * 2
        made = getattr(self, "make_" + self.random.choice(kinds))(depth)
        if self.chance(0.1) and "$ref" not in made:
            made |= {"description": "What it says: \"nothing\".", "title": "T"}
        return made

    def make_string(self, _):
        kind = self.random.randrange(5)
        if kind == 0:
            return {"type": "string", "pattern": "^" + self.random.choice(PATTERNS) + "$" if self.chance(0.5)
                    else self.anchored(self.random.choice(PATTERNS))}
        if kind == 1:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        least = self.random.randrange(4)
        return {"type": "string", "minLength": least, "maxLength": least + self.random.randrange(1, 12)}

    @staticmethod
    def anchored(pattern):
        return f"^({pattern})$"

    def make_integer(self, _):
        low = self.random.randrange(-50, 50)
        made = {"type": "integer"}
        if self.chance(0.5):
            made[self.random.choice(("minimum", "exclusiveMinimum"))] = low
        if self.chance(0.5):
            made[self.random.choice(("maximum", "exclusiveMaximum"))] = low + self.random.randrange(3, 4000)
        if len(made) != 2 and self.chance(0.2):  # without bounds, or with two
            made["multipleOf"] = self.random.choice((2, 3, 5))
        return made

    def make_number(self, _):
        low = self.random.choice((-1.5, 0, 0.25, 3, 17.125))
        made = {"type": "number"}
        if self.chance(0.6):
            made["minimum"] = low
            made["maximum"] = low + self.random.choice((0.5, 2, 100, 1e6))
        return made

    def make_boolean(self, _):
        return {"type": "boolean"}

    def make_null(self, _):
        return {"type": "null"}

    def make_enum(self, _):
        values = self.random.sample((*WORDS, 1, 2.5, -3, True, None, [1, "a"], {"k": [None]}), self.random.randrange(1, 5))
        return {"enum": values}

    def make_const(self, _):
        return {"const": self.random.choice((*WORDS, 7, False, None, [], {"deep": {"er": 1}}))}

    def make_object(self, depth):
        if self.chance(0.1):
            return {"type": "object", "additionalProperties": self.any(depth + 1), "maxProperties": 3}
        if self.chance(0.05):
            return {"type": "object", "patternProperties": {"^[a-z]{1,4}$": self.any(depth + 1)}, "maxProperties": 3}
        if self.chance(0.05):
            return {"type": "object", "propertyNames": {"enum": ["p", "q", "r"]}, "additionalProperties": {"type": "integer"},
                    "maxProperties": 3}
        names = self.random.sample(NAMES, self.random.randrange(0, 5))
        made = {"type": "object", "properties": {name: self.any(depth + 1) for name in names},
                "required": [name for name in names if self.chance(0.6)]}
        if self.open and self.chance(0.4):
            made["properties"]["again"] = self.itself()  # not required
        closed = self.random.randrange(3)
        if closed > 0 or not names:
            made["additionalProperties"] = False
        if made.get("additionalProperties") is False and self.chance(0.1) and names:
            made["minProperties"] = self.random.randrange(len(made["required"]), len(names) + 1)
        return made

    def make_array(self, depth):
        made = {"type": "array"}
        if self.chance(0.3):
            made["prefixItems"] = [self.any(depth + 1) for _ in range(self.random.randrange(1, 3))]
            made["items"] = False if self.chance(0.5) else self.any(depth + 1)
            made["minItems"] = self.random.randrange(len(made["prefixItems"]) + 1)
            made["maxItems"] = len(made["prefixItems"]) + (0 if made["items"] is False else 2)
            return made
        made["items"] = self.any(depth + 1)
        made["minItems"] = self.random.randrange(3)
        made["maxItems"] = made["minItems"] + self.random.randrange(1, 3)
        return made

    def make_anyOf(self, depth):
        return {"anyOf": [self.any(depth + 1) for _ in range(self.random.randrange(1, 4))]}

    def make_oneOf(self, depth):
        if self.chance(0.5):
            kinds = self.random.sample(("string", "integer", "boolean", "null", "array"), 2)
            return {"oneOf": [getattr(self, "make_" + kind)(depth + 1) for kind in kinds]}
        return {"oneOf": [{"type": "object", "properties": {"type": {"const": word}, "value": self.any(depth + 1)},
                           "required": ["type", "value"], "additionalProperties": False} for word in ("circle", "square")]}

    def make_allOf(self, depth):
        return {"allOf": [self.any(depth + 1)]}

    def make_types(self, _):
        return {"type": self.random.sample(("string", "integer", "boolean", "null"), 2), "maxLength": 9}

    def itself(self):
        """A definition that is being made, where a value may do without."""
        target = {"$ref": f"#/$defs/{self.random.choice(self.open)}"}
        return self.random.choice((
            {"anyOf": [{"type": "null"}, target]},
            {"type": "array", "items": target, "maxItems": 1},
            {"type": "object", "properties": {"next": target}, "additionalProperties": False}))

    def make_ref(self, depth):
        if self.open and self.chance(0.5):
            return self.itself()
        if self.definitions and self.chance(0.3):
            closed = [name for name in self.definitions if name not in self.open]
            if closed:
                return {"$ref": f"#/$defs/{self.random.choice(closed)}"}
        name = f"d{len(self.definitions)}"
        self.definitions[name] = None
        self.open.append(name)
        self.definitions[name] = self.make_object(depth + 1)
        self.open.remove(name)
        return {"$ref": f"#/$defs/{name}"}


def schema(seed):
    maker = Maker(seed)
    root = maker.make_ref(0) if maker.chance(0.2) else maker.make_object(0) if maker.chance(0.7) else maker.make_array(0)
    if maker.definitions:
        root["$defs"] = maker.definitions
    return root


def is_date_time(text):
    date, _, time = text.partition("T")
    return is_date(date) and is_time(time)


def is_date(text):
    return bool(re.fullmatch(r"\d{4}-\d{2}-\d{2}", text)) and bool(datetime.date.fromisoformat(text))


def is_time(text):
    if not re.fullmatch(r"\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})", text):
        return False
    leap = text[6:8] == "60"  # RFC 3339 has leap seconds, datetime none
    plain = (text[:6] + "59" if leap else text[:8]) + (re.search(r"(Z|[+-]\d{2}:\d{2})$", text)[0])
    return datetime.time.fromisoformat(plain) is not None


CHECKS = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "duration": lambda s: bool(re.fullmatch(
        r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)", s)),
    "hostname": lambda s: len(s) <= 253 and all(
        re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", label) for label in s.split(".")),
    "uri": lambda s: bool(urllib.parse.urlsplit(s).scheme) and not re.search(r"[\s<>\"{}|\\^`]", s),
}
FORMAT_CHECKER = jsonschema.FormatChecker(formats=("email", "ipv4", "ipv6", "uuid"))
for _name, _check in CHECKS.items():
    FORMAT_CHECKER.checks(_name, raises=ValueError)(
        lambda value, check=_check: not isinstance(value, str) or check(value))


def check(schema_, value):
    """Raises jsonschema.ValidationError unless the value fits."""
    jsonschema.Draft202012Validator(schema_, format_checker=FORMAT_CHECKER).validate(value)
