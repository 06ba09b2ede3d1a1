#pragma once
// What is behind the types of compiler.h. Private to the folder: it brings xgrammar's headers.
#include <xgrammar/xgrammar.h>

#include "text/grammar/compiler.h"

namespace troupe::grammar {

struct TokenTable::Impl {
  xgrammar::TokenizerInfo info;
};

struct CompiledForm::Impl {
  xgrammar::CompiledGrammar grammar;
};

}  // namespace troupe::grammar
