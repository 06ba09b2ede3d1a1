#pragma once
// Forms as clients describe them, read → sources for the compiler. Everything that can be decided without
// compiling is decided here: sizes, nesting, keywords that would not be enforced, names of tokens. In the
// server this runs in the process that compiles (actors/grammar/form_worker.h) and in no other.
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "text/grammar/compiler.h"
#include "text/grammar/form.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe::grammar {

/// `value`: what Form::value is the text of. `texts` know the tokens that a structural tag names. Not ok:
/// invalid_argument; `param` begins with the one given and is the place, `reason` one of those of
/// enforceable(), or invalid_value, grammar_too_large, grammar_too_deep.
Result<Source> prepare(Form::Kind kind, Json value, const std::string& param, const TokenTexts& texts,
                       bool any_whitespace, const FormLimits& limits = {});

}  // namespace troupe::grammar
