#pragma once
// What becomes of the parts of a request that this server does not do, for all APIs. A part that clients send
// by themselves and that promises nothing of the answer is left out, and the answer names it
// (x-troupe-ignored, the log). A part whose absence would change the answer is refused by name. Private to
// the parsers of http/api/.
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "http/api/fields.h"
#include "http/api/request.h"

namespace troupe::http {

enum class PartUse : std::uint8_t {
  left_out,
  refused,
  call,    ///< of an input item: shown to the model as a call of a tool
  result,  ///< likewise as what a tool has given
};

/// A top-level field that is left out or refused, in some of the APIs.
struct FieldPolicy {
  enum class When : std::uint8_t {
    given,      ///< whatever it holds; null is absent
    filled,     ///< unless it is an empty string, list or object, 0 or false
    on,         ///< when it is true; what is neither true nor false is refused as such
    off,        ///< when it is false; likewise
    above_one,  ///< a number above 1
    not_text,   ///< when it is something else than ["text"]
  };
  std::string_view field;
  ApiSet apis;
  When when;
  PartUse use;
  std::string_view why;  ///< of a refusal: goes on after the field's name
};
std::span<const FieldPolicy> field_policies();

/// Applies the policies of `api` to the body: records the first refusal, and what is left out.
void apply_policies(Fields& fields, ApiSet api);

/// Whether a tool is left out for its `type`: every kind but functions (`known`) runs at another server, or
/// has a form that only its own clients know. A tool that is no object, or whose type is no string, is not:
/// it is refused later.
bool is_left_out_tool(const Json& tool, std::string_view known);

enum class ReasoningEffort : std::uint8_t { none, minimal, low, medium, high };

/// The effort of that name. The names above high mean high, the most that a model here has. Nothing for other
/// names.
std::optional<ReasoningEffort> effort_of(std::string_view name);
inline constexpr std::string_view kEfforts = "none, minimal, low, medium, high, xhigh or max";

/// An item of the input of /v1/responses beside messages, thoughts and functions.
struct ItemPolicy {
  std::string_view type;
  PartUse use;
  std::string_view tool = {};  ///< of a call: the name; empty: the item's own
  std::string_view given =
      {};  ///< of a call: the member that holds what the tool was given; of a refusal: why
};
const ItemPolicy* find_item_policy(std::string_view type);

/// Whether a block of /v1/messages is left out: it belongs to tools that another server runs.
bool is_left_out_block(const Json& block);

}  // namespace troupe::http
