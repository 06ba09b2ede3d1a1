// Chat templates: any text compiles or is refused, and renders within its limits.
#include "text/template/chat_template.h"
#include "fuzz/target.h"

namespace troupe {
namespace {

FUZZ_TARGET(chat_template) {
  using Json = nlohmann::ordered_json;
  static const Json tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  static const Json messages = Json::parse(R"([{"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "two <s> lines\n"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
      "function": {"name": "f", "arguments": {"x": [1, 2.5, "z"], "y": null}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "7"}])");
  static const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])");
  const auto compiled = ChatTemplate::compile(std::string(fuzz::text(input)), tokens);
  if (!compiled.ok()) return;
  RenderLimits limits;
  limits.steps = 20'000;
  limits.output_bytes = 1 << 16;
  const auto text = (*compiled)->render(messages, tools, Json{{"enable_thinking", true}}, true, limits);
  if (!text.ok()) return;
  std::size_t bytes = 0;
  bool trusted = false, first = true;
  for (const TextSpan& span : *text) {
    fuzz::require(!span.text.empty(), "no span is empty");
    fuzz::require(first || span.trusted != trusted, "adjacent spans differ in trust");
    trusted = span.trusted;
    first = false;
    bytes += span.text.size();
  }
  fuzz::require(bytes <= static_cast<std::size_t>(limits.output_bytes), "the output is within its limit");
}

}  // namespace
}  // namespace troupe
