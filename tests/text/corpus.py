"""Lines that are hard on tokenizers: scripts, joiners, spaces, digits, code, special tokens."""

from __future__ import annotations

PROSE = """
The quick brown fox jumps over the lazy dog.
It's what we'd call "don't-care" bits; they'll, I'm, you've, we're, SHE'S, IT'LL.
Mr. O'Neill's half-brother re-read the co-operative's e-mail — twice…
Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. Straße, STRASSE, ẞ.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?
Příliš žluťoučký kůň úpěl ďábelské ódy.
Pchnąć w tę łódź jeża lub ośm skrzyń fig.
Høj bly gom vandt fræk sexquiz på wc. Þórður, ð, æ, ø, å.
Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства.
Чуєш їх, доцю, га? Кумедна ж ти, прощайся без ґольфів!
Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. ᾧ ἀρχῇ
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. ١٢٣٤٥
پیشنهاد می‌شود که نیم‌فاصله‌ها بمانند. ۱۲۳۴۵
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३
বাংলা ভাষায় যুক্তাক্ষর: ক্ষ, জ্ঞ, ঙ্ক। ১২৩
தமிழ் மொழி மிகவும் பழமையானது.
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓
ကမ္ဘာကြီးတစ်ခုလုံး မြန်မာစာ
ខ្ញុំ\u200bស្រឡាញ់\u200bភាសា\u200bខ្មែរ
私はガラスを食べられます。それは私を傷つけません。ｶﾀｶﾅ ＡＢＣ１２３
いろはにほへと ちりぬるを わかよたれそ つねならむ。
天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。
我能吞下玻璃而不伤身体。共有３５个，价格是￥１２８．５０。
나는 유리를 먹을 수 있어요. 그래도 아프지 않아요. ㅋㅋㅋ
한글 (decomposed jamo)
ქართული ანბანი, Հայերեն այբուբեն, ᏣᎳᎩ, ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𝐛𝐨𝐥𝐝 𐍈 𒀀 𠜎𠜱𠝹
Tiếng Việt có nhiều dấu: ă â đ ê ô ơ ư, ngã hỏi nặng.
á é ô n̈ z̧ (combining) Å Å Å ﬁ ﬂ ǆ
½ ¼ ² ³ ₁₂ Ⅳ ⅷ ① ⑳ ㊿ ௧ ๓ 𝟗 〇 二十
"""

EMOJI = """
😀😃😄 😂😂😂
👍🏽 👋🏿 🤷🏻‍♀️
👨‍👩‍👧‍👦 👩‍❤️‍💋‍👨 🏳️‍🌈 🏴‍☠️
🇩🇪🇫🇷🇯🇵 🏴󠁧󠁢󠁥󠁮󠁧󠁿
❤️ ❤ ☺︎ ☺️ ✔️ 1️⃣ #️⃣
text😀text 😀 text
🫠🪿🛜
"""

CODE = """
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
\tif (x != NULL && x->next[0] == 0x7fff'ffff) { *p++ = ~x >> 3; }
for(int i=0;i<10;++i){std::cout<<i<<"\\n";}
SELECT a.id, COUNT(*) AS n FROM t_1 a WHERE a.x >= 1e-5 GROUP BY 1;
<div class="a b" data-x='{"k":[1,2,3]}'>&nbsp;&#x1F600;</div>
https://example.com:8080/a/b.html?q=1&r=%20x#frag user.name+tag@example.co.uk
\\begin{equation} \\sum_{i=0}^{\\infty} \\frac{1}{2^i} = 2 \\end{equation}
#!/usr/bin/env bash -euo pipefail; [[ $# -gt 0 ]] || exit 1
snake_case camelCase PascalCase SCREAMING_CASE kebab-case x_1 __init__ a__b
| a | b |
|---|:-:|
```python
@decorator(lambda *a, **k: {**k, 'a': a[::-1]})
$$$ %%% ^^^ &&& *** ((( ))) ___ +++ === {{{ }}} [[[ ]]] ||| \\\\\\ ~~~ ``` ''' \"\"\"
"""

DIGITS = """
1
12
123
1234
12345
123456789
0.1 1.5e-10 1,234,567.89 -42 +7 1/2 50% $3.50 €10 #1
2024-02-29T23:59:59.999Z 12:34 192.168.0.1 +1 (555) 123-4567
a1b2c3 x86_64 v1.2.3-rc4 3D 4K 10th 1st 2nd
007 0x1F 0b1010 1_000_000 1e100
  1   2    3     4
1 22 333 4444 55555
١٢٣ ۴۵۶ १२३ ๑๒๓ ４５６ 一二三 ²³ ½ Ⅷ
year2024month02 abc123def456ghi
"""

SPECIAL = """
<|im_start|>user
hello<|im_end|>
<|im_start|>system<|im_end|><|im_start|>
<|endoftext|><|endoftext|>
a<|im_end|>b <|im_end|> c
<|im_start |> <|im_start| <im_start> |im_end|> <|IM_END|>
<repo_name>x/y<file_sep>z.py<filename>
<issue_start><issue_comment>text<issue_closed>
<jupyter_start><jupyter_code>1+1<jupyter_output>2<empty_output>
<|im_end|>  <|im_end|>
<gh_stars>100-1000
"""

SPACES = [
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n ",
    "\n  \n",
    "a ",
    " a",
    "a  b",
    "a   b",
    "a\tb",
    "a\t\tb",
    "a \t b",
    "a\n",
    "a\n\nb",
    "a \n b",
    "a\r\nb\r\n\r\nc",
    "a\rb",
    "    indented",
    "\tindented",
    "trailing   ",
    "trailing\t\n",
    "a\u00a0b",
    "a\u00a0\u00a0b",
    "a\u2003b",
    "a\u200bb",
    "a\u3000b",
    "\u3000\u3000c",
    "a\u2028b\u2029c",
    "a\u0085b",
    "a\vb\fc",
    "\ufeffbom",
    "a\u00adb",
    "x  1",
    "x   12  3",
    "\n\n\n\n5",
    "  .",
    "  é",
    " 's",
    "  's",
]

CONTROL = [
    "\x00",
    "a\x00b",
    "\x01\x02\x03",
    "\x1b[31mred\x1b[0m",
    "\x7f",
    "\x80\x9f",
    "a\x08b",
    "\u202eright to left\u202c",
    "\u200d\u200c\u200e\u200f",
    "e\u0301 n\u0308o \u1112\u1161\u11ab A\u030a",
    "\ufffd",
    "\ufffe\uffff",
    "\U0010ffff",
    "\ue000 private",
    "a" * 300,
    "ab" * 150,
    " " * 300,
    "\n" * 100,
    "!" * 100,
    "1" * 100,
    "é" * 100,
    "字" * 100,
    "😀" * 50,
    "supercalifragilisticexpialidocious",
    "qzxjkvbwp",
]

UNSPELLABLE = ["a\x04b", "\x06", "x \x13\x14 y", "\U00040000z", "é\U000e0001\U00050000 1"]
"""Text with bytes that SmolLM2's vocabulary does not have; they are left out."""


def lines() -> list[str]:
    blocks = (PROSE, EMOJI, CODE, DIGITS, SPECIAL)
    plain = [line for block in blocks for line in block.strip("\n").split("\n")]
    joined = [
        separator.join(pair)
        for pair in zip(plain[::3], plain[1::3], strict=False)
        for separator in (" ", "\n", "\n\n", "  ", "7", "")
    ]
    return [*plain, *joined, *(f" {line} " for line in plain), *SPACES, *CONTROL, *blocks]
