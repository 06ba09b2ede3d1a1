# Prompts to tokens and tokens to text; knows nothing of tensors.
troupe_module(model_text
  HEADERS
    chat_template.h detokenizer.h sentencepiece_file.h text_span.h tokenizer.h tokenizer_added.h tokenizer_bpe.h
    tokenizer_files.h tokenizer_json.h tokenizer_nfc.h tokenizer_nfc_table.h tokenizer_pattern.h
    tokenizer_sentencepiece.h tokenizer_split.h tokenizer_vocabulary.h tokenizer_word_cache.h utf8.h
    jinja/arguments.h jinja/ast.h jinja/budget.h jinja/error.h jinja/lexer.h jinja/limits.h jinja/operators.h
    jinja/parser.h jinja/print.h jinja/rendering.h jinja/sequence_filters.h jinja/template.h jinja/text.h
    jinja/text_operations.h jinja/unicode.h jinja/value.h
  SOURCES
    chat_template.cpp detokenizer.cpp sentencepiece_file.cpp tokenizer_added.cpp tokenizer_bpe.cpp
    tokenizer_files.cpp tokenizer_json.cpp tokenizer_load.cpp tokenizer_nfc.cpp tokenizer_pattern.cpp
    tokenizer_sentencepiece.cpp tokenizer_split.cpp tokenizer_vocabulary.cpp utf8.cpp
    jinja/arguments.cpp jinja/evaluate.cpp jinja/execute.cpp jinja/filters.cpp jinja/format_percent.cpp
    jinja/functions.cpp jinja/lexer.cpp jinja/methods.cpp jinja/operators.cpp jinja/parse_expression.cpp
    jinja/parser.cpp jinja/print.cpp jinja/rendering.cpp jinja/sequence_filters.cpp jinja/template.cpp
    jinja/tests.cpp jinja/text.cpp jinja/text_operations.cpp jinja/unicode.cpp jinja/value.cpp
  DEPS troupe::model_json ${PCRE2} ${SENTENCEPIECE})
# GCC 12 reports "literal" + std::string as an overlapping copy (its bug 105651).
target_compile_options(troupe_model_text PRIVATE -Wno-restrict)
