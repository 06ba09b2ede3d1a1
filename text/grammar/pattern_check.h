#pragma once
#include "base/status.h"
#include "text/grammar/compiler.h"

namespace troupe::grammar {

/// ok when every pattern in a source's schemas can be enforced within a JSON string: xgrammar's automaton
/// reads all of it, and some string without a quote, a backslash and a control character matches. Where its
/// automaton cannot, xgrammar would take another path, which lets quotes out of the string. Takes as long as
/// a hostile pattern likes.
Status check_patterns(const Source& source);

}  // namespace troupe::grammar
