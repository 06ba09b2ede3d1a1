"""The tokenizer part of make_text_fixtures.py: trains small tokenizers and records the reference's results."""
import inspect
import io
import json
import re
import shutil

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
MARKUP = ["<|begin_of_sentence|>", "<|end_of_sentence|>", "<mask:0>", "<mask:1>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]

SENTENCES = [
    "The quick brown fox jumps over the lazy dog. It's 12:30 on 2024-05-06, isn't it? We'll see; they've said I'd.",
    "Größe, naïve café, señor, Ελληνικά κείμενο, Русский текст, हिन्दी पाठ, ไทย ข้อความ, עברית, العربية.",
    "你好，世界！今天天气很好，我们去公园散步吧。北京是中国的首都。日本語のテキストです。한국어 문장입니다.",
    "def f(x):\n    return x ** 2  # square\n\n\tif (a != b) { printf(\"%d\\n\", a); }\n",
    "Emoji: 😀😈🤗 👩‍👩‍👧‍👦 🇩🇪 ❤️ and symbols → ≤ ≥ ± € £ ¥ § ¶.",
]

NASTY = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", " \n \t ", "a", " a", "a ", "  a  b   c    ", "Hello", " Hello", "Hello, world!",
    "The quick brown fox's 12 jumps; it'll cost 1234567890 dollars, won't it?", "I'M SHE'LL they'Re don't 're 's",
    "0", "00", "1a2b3c", "3.14159", "１２３ ٣٤ ⅷ ½ ²", "x²+y²=z²", "2024-05-06T12:30:00Z",
    "你好，世界", "今天天气很好 2024 年", "日本語テキスト", "한국어 텍스트", "ไทยข้อความ", "हिन्दी", "עברית", "العربية ﷽",
    "é", "e\u0301", "a\u0323\u0307", "Å \u212b A\u030a", "n\u0303o", "क़", "각 각",
    "😀", "😀😀😀", "👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "❤️", "🤦🏽‍♀️", "\U0001F9D1\u200D\U0001F4BB code",
    "\u200b\u200d\ufeff", "a\u00a0b", "a\u3000b", "\u2028\u2029", "\u0085", "\u180e", "\u1680", "\u202f",
    "\x00", "a\x00b", "\x01\x02\x1f\x7f", "\r\n", "\r", "a\r\n b", "tab\tsep\tx", "\x0b\x0c",
    "<|im_start|>", "<|im_start|>user\nhi<|im_end|>\n", "x<|im_end|>y", "<|im_end|><|im_end|>", "<|im_start", "|im_start|>", "< |im_start|>",
    "<<|im_start|>>", "<|im_start|><|im_start", "<s>", "</s>", "<s> Hello<s>how", " <s> Hello<s> how", "<unk>", "<0x41>", "<pad>",
    "<|begin_of_sentence|>User: 你好\nAssistant: ", "<mask:0><mask:1>", "<mask:0", "<think>\nhm\n</think>\n\nok", "<tool>x</tool>", "pre<tool>post", "a <strip> b", "a  <strip>  b", "word wordword word.",
    "▁", "▁▁a", "a▁b", "Ġ", "Ċ", "Ġthe", "\u0120 \u010a",
    "def f(x):\n    return x ** 2\n", "if (a != b) {\n\t\tprintf(\"%d\\n\", a);\n}", "    indented\n        more\n", "a" * 100, " " * 100, "ab" * 60, "1" * 50, "!?" * 40, "\n" * 20 + "x",
    "naïve café Größe", "ﬁ ﬃ ＡＢＣ １", "𝒳𝓎 𝕫", "\U0010FFFF\U000E0001", "\ue000", "Hey<eos>. \t\t \n\nyou  é  @#😈  🤗!       , 1234 15 5,61",
    "But ird and ปี   ird   ด", "This is a test", "A sample test", "The following string should be properly encoded: Hello.",
    "https://example.com/a?b=c&d=%20e#f", "user@example.com", "$100,000.00", "C++20", "'''", "\"\"\"", "''s", "don''t", "\\n\\t", "{\"a\": [1, 2.5, null]}",
]


def corpus():
    texts = list(SENTENCES) * 12
    for module in (json, re, inspect, io, shutil):
        for _, member in sorted(vars(module).items()):
            text = inspect.getdoc(member) if callable(member) else None
            if text:
                texts.append(text[:2000])
    return texts


def save(tokenizer, path):
    """Compact JSON, small enough to commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    print(f"{path.parent.name}/{path.name}: {len(text.encode())} bytes")


def byte_level(data, name, pre_tokenizer, normalizer=None, vocab=1400, tokens=(), edit=None):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    del normalizers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(list(tokens) or [AddedToken("<tool>", normalized=False)])
    path = data / name / "tokenizer.json"
    save(tokenizer, path)
    if edit:
        document = json.loads(path.read_text(encoding="utf-8"))
        edit(document)
        path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    return path


def string_merges(document):
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]


def without_specials(tokenizer, text):
    """Encodes special tokens as plain text, by the reference's own switch."""
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    return ids


def json_cases(path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    cases = []
    for text in NASTY:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids, "plain": without_specials(tokenizer, text)}
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if "\ufffd" not in decoded:  # the reference corrupts added tokens that are not ASCII; ours prints them unchanged
            case["decoded"] = decoded
        cases.append(case)
    return cases


def train_sentencepiece(data, name, **options):
    import sentencepiece

    model = io.BytesIO()
    settings = dict(model_type="bpe", vocab_size=1500, byte_fallback=True, character_coverage=0.98,
                    normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
                    split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=MARKUP, unk_id=0,
                    bos_id=1, eos_id=2, pad_id=-1, minloglevel=2, num_threads=1)
    settings.update(options)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=model, **settings)
    folder = data / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    print(f"{name}/tokenizer.model: {len(model.getvalue())} bytes")
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_cases(processor, strings):
    """The reference procedure: splits at added tokens, the longest first, and encodes the pieces between them."""
    names = sorted(strings, key=len, reverse=True)
    splitter = re.compile("(" + "|".join(map(re.escape, names)) + ")")
    cases = []
    for text in NASTY:
        ids = []
        for part in splitter.split(text):
            ids += [strings[part]] if part in strings else processor.encode(part) if part else []
        cases.append({"text": text, "ids": ids})
    return cases


def make(data, write_json):
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

    fixture = {}
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    more = [AddedToken("<tool>", normalized=False), AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False)]
    fixture["byte_level"] = json_cases(byte_level(data, "byte_level", digits, tokens=more))
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    path = byte_level(data, "split_nfc", split, normalizers.NFC(), vocab=900, tokens=[AddedToken("naïve", normalized=True)], edit=string_merges)
    fixture["split_nfc"] = json_cases(path)

    processor = train_sentencepiece(data, "sentencepiece")
    strings = {piece: processor.piece_to_id(piece) for piece in MARKUP + ["<s>", "</s>", "<unk>"]}
    strings["<tool>"] = processor.get_piece_size()
    (data / "sentencepiece" / "added_tokens.json").write_text(json.dumps({"<tool>": strings["<tool>"]}))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>", "cls_token": "<|begin_of_sentence|>", "sep_token": "<|end_of_sentence|>", "mask_token": "<mask:1>", "add_bos_token": False}
    (data / "sentencepiece" / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    fixture["sentencepiece"] = sentencepiece_cases(processor, strings)

    # The same vocabulary as a tokenizer.json: merges in the order in which SentencePiece would prefer them.
    fixture["llama_style"] = json_cases(llama_style(data, processor))

    prefixed = train_sentencepiece(data, "sentencepiece_prefix", add_dummy_prefix=True, remove_extra_whitespaces=True, normalization_rule_name="nmt_nfkc", vocab_size=900, user_defined_symbols=["<mask:0>", "<sep>"])
    plain = [text for text in NASTY if not re.search(r"<(s|/s|unk|mask:0|sep)>", text)]
    fixture["sentencepiece_prefix"] = [{"text": text, "ids": prefixed.encode(text)} for text in plain]
    (data / "tokenizer_cases.json").write_text(json.dumps(fixture, ensure_ascii=False, separators=(",", ":")).replace('},{"text"', '},\n{"text"') + "\n", encoding="utf-8")
    print("tokenizer_cases.json:", (data / "tokenizer_cases.json").stat().st_size, "bytes")


def llama_style(data, processor):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    vocab = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in range(processor.get_piece_size())}
    merges = []
    for piece in vocab:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab and piece not in MARKUP:
                merges.append((scores[piece], vocab[piece], left, right))
    merges.sort(key=lambda merge: (-merge[0], merge[1], vocab[merge[2]], vocab[merge[3]]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(left, right) for _, _, left, right in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in ["<unk>", "<s>", "</s>"] + MARKUP])
    path = data / "llama_style" / "tokenizer.json"
    save(tokenizer, path)
    return path
