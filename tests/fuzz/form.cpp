// Forms of answers through all that is checked before they are compiled, and the patterns that the compiler
// looks at: any form is refused with its place, or becomes a source that passes the same checks
// again.
#include "fuzz/target.h"
#include "http/api/json_body.h"
#include "support/byte_tokenizer.h"
#include "text/grammar/form_check.h"
#include "text/grammar/pattern_check.h"
#include "text/grammar/schema.h"

namespace troupe::grammar {
namespace {

FUZZ_TARGET(form) {
  if (input.empty()) return;
  static const testing::ByteTokenizer tokenizer;
  constexpr std::size_t kLongestPattern =
      64;  // checking one may take as long as it likes: a process of its own does it
  FormLimits limits;
  limits.schema.pattern_bytes = kLongestPattern;
  auto value = http::parse_json(fuzz::text(input.subspan(1)), {.depth = 128, .elements = 100'000});
  if (!value.ok()) return;
  const auto kind = static_cast<Form::Kind>(input[0] % 6);
  const auto source = prepare(kind, *std::move(value), "form", tokenizer, (input[0] & 64) != 0, limits);
  if (!source.ok()) {
    const Status& refusal = source.status();
    fuzz::require(refusal.code == Code::invalid_argument, "a refusal is the client's fault");
    fuzz::require(refusal.param.starts_with("form") && refusal.message.starts_with(refusal.param),
                  "a refusal names its place");
    return;
  }
  if (source->kind != Source::Kind::json_schema) return;
  auto again = json::parse(source->text);
  fuzz::require(again.has_value(), "a source is JSON");
  const Status status = enforceable(*again, "form", limits.schema);
  // A rewritten pattern may be longer than one that a client may send.
  fuzz::require(status.ok() || status.reason == "schema_too_large", status.message.c_str());
  if (source->text.find("pattern") == std::string::npos)
    fuzz::require(check_patterns(*source).ok(), "no pattern is at fault");
}

}  // namespace
}  // namespace troupe::grammar
