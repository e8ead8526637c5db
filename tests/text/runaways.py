"""Templates that try to run away in one operation, and a program that renders them one by one.

Each is worth a process of its own only when it wins, so all share one that its caller can end.
"""

from __future__ import annotations

import json
import time

from treadle.errors import InvalidRequest
from treadle.text import limits
from treadle.text.chat import ChatTemplate

LONG = "('a' * 10000000)"
FIRST = "{% set ns = namespace(x=(1,), y=(1,)) %}"
TOWER = FIRST + "{% for i in range(40) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
LEFT_OUT = "{% for c in 'a' * 30000000 if false %}{% endfor %}"
MANY = "(('a,' * 400000).split(','))"
COLLIDING = "range(0, 10000 * (2 ** 61 - 1), 2 ** 61 - 1)"


def grown(step: str, use: str, times: int = 40) -> str:
    return f"{FIRST}{{% for i in range({times}) %}}{{% set ns.x = {step} %}}{{% endfor %}}{use}"


RUNAWAYS: list[str] = [
    # One text within another, by the product of their lengths.
    *(f"{{{{ {LONG}.{name}('b' * 10000000 ~ 'a') }}}}" for name in ("strip", "lstrip", "rstrip")),
    f"{{{{ {LONG} | trim('b' * 10000000 ~ 'a') | length }}}}",
    f"{{{{ {LONG} | trim(chars='b' * 10000000 ~ 'a') | length }}}}",
    f"{{{{ ({LONG} | safe).strip('b' * 10000000 ~ 'a') }}}}",
    f"{{{{ {LONG}.encode().strip(('b' * 10000000 ~ 'a').encode()) }}}}",
    *(
        f"{{{{ {LONG}.{name}('ab' ~ 'a' * 5000000) }}}}"
        for name in ("rfind", "rindex", "rsplit", "rpartition")
    ),
    # Large numbers.
    "{% set a = ('f' * 10000000) | int(0, 16) %}{{ (a // 7) > 1 }}",
    "{% set a = ('f' * 10000000) | int(0, 16) %}{{ a % 7 }}",
    "{{ ('9' * 10000000) | float }}",
    "{{ ('9' * 10000000) | filesizeformat }}",
    "{{ 5 | round(-1000000000) }}",
    "{{ 5 | round(1000000000, 'ceil') }}",
    "{{ 5 | round(method='ceil', precision=1000000000) }}",
    "{{ (1).from_bytes('a'.encode() * 1000000, 'big') % 7 }}",
    "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x=3) %}"
    "{% for i in range(999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ 0x" + "f" * 100000 + " % 7 }}",
    "{{ " + "9" * 100000 + " % 7 }}",
    "{{ '%1000000000d' is odd }}",
    "{{ '%1000000000d' is divisibleby(3) }}",
    # Values that hold one another twice, level upon level.
    TOWER + "{{ {ns.x: 1} }}",
    TOWER + "{{ ns.x in [ns.x] }}",
    TOWER + "{{ ns.x }}",
    grown("[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    grown("{'a': ns.x, 'b': ns.x}", "{{ ns.x ~ '' }}"),
    grown("{'a': ns.x, 'b': ns.x}.items()", "{{ ns.x | string }}"),
    grown("dict(a=ns.x, b=ns.x)", "{{ ns.x | pprint }}"),
    grown("cycler(ns.x, ns.x).items", "{{ {ns.x: 1} }}"),
    grown("[ns.x] * 2", "{{ ns.x == [] }}"),
    grown("[ns.x] + [ns.x]", "{{ [ns.x, ns.x] | sort }}"),
    grown("[nothing, nothing] | map('default', ns.x) | list", "{{ ns.x == ns.x[1] }}"),
    grown("[1] | batch(2, ns.x) | list + [ns.x]", "{{ ns.x | string }}"),
    grown("[[ns.x], [ns.x]] | sum(start=[]) ", "{{ ns.x | string }}"),
    FIRST + "{% macro f(n) %}{% set n.x = varargs %}{% endmacro %}"
    "{% for i in range(40) %}{{ f(ns, ns.x, ns.x) }}{% endfor %}{{ {ns.x: 1} }}",
    FIRST + "{% macro f(n) %}{% set n.x = kwargs %}{% endmacro %}"
    "{% for i in range(40) %}{{ f(ns, a=ns.x, b=ns.x) }}{% endfor %}{{ ns.x | tojson }}",
    grown("(ns.x,)", "{{ {ns.x: 1} }}", 90000),
    # Work that no loop of the template's shows.
    "{{ ('a,' * 4000000).split(',') | map('upper') | map('lower') | map('trim') | list | length }}",
    f"{{{{ {MANY}" + " | map('upper')" * 40 + " | list | length }}",
    f"{{{{ {MANY} | map('upper') | select('in', 'A') | unique | list | length }}}}" * 20,
    "{{ range(100000) | sort(attribute='real" + ".real" * 20000 + "') | length }}",
    "{{ range(100000) | map(attribute='real" + ".real" * 20000 + "') | list | length }}",
    LEFT_OUT * 100,
    "{% set x = 'a' * 30000000 %}" + "{% set y = x[::-1] %}" * 500,
    "{% set x = 'a' * 30000000 %}" + "{% if 'b' in x %}{% endif %}" * 800,
    "{% set x = 'a' * 30000000 %}" + "{% if x.count('b') %}{% endif %}" * 800,
    "{% set x = 'a' * 30000000 %}{% set y = 'a' * 30000000 %}" + "{% set z = x == y %}" * 800,
    "{% set x = 'A' * 30000000 %}" + "{% if x is upper %}{% endif %}" * 800,
    f"{{% set p = 2 ** 61 - 1 %}}{{{{ dict({COLLIDING} | batch(2)) }}}}",
    f"{{{{ {{}}.fromkeys({COLLIDING}) }}}}",
    f"{{{{ {{}}.keys() - {COLLIDING} }}}}",
    # Searches that go back and forth.
    "{{ (')' * 1000000 ~ 'a') | urlize }}",
    "{{ ('<!---->' * 100000) | striptags }}",
    "{{ (('<!---->' * 100000) | safe).striptags() }}",
    "{{ ('a' * 1000000).encode('punycode') }}",
    "{{ ('a' * 1000000).encode('idna') }}",
    "{{ ('{0}' * 900000).format(1) }}",
    # Templates that are large themselves.
    "{{ " + "-" * 50000 + "1 }}",
    "{{ " + "[" * 50000 + "]" * 50000 + " }}",
    "{{ " + "1 + " * 3000 + "1 }}",
    "{{ a" + ".a" * 5000 + " }}",
    "{% if a %}" + "{% elif a %}" * 2000 + "{% endif %}" + "{{ 1 / 0 }}",
    "{% if a %}" * 3000 + "{% endif %}" * 3000,
    "{{ f(" * 3000 + ")" * 3000 + " }}",
    "{{ a }}" * 40000,
    "x" * 300000,
]  # fmt: skip


def main() -> None:
    limits.MAX_SECONDS = 0.15
    for source in RUNAWAYS:
        start = time.process_time()
        try:
            message = ""
            ChatTemplate(source, bos_token="", eos_token="").render([])
        except InvalidRequest as error:
            message = error.message
        print(json.dumps([time.process_time() - start, message]), flush=True)


if __name__ == "__main__":
    main()
