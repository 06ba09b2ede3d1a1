#include "http/batch/batch_line.h"

#include <charconv>
#include <utility>
#include <vector>

#include "http/api/json_body.h"
#include "http/api/json_text.h"

namespace troupe::http {
namespace {

constexpr std::size_t kMostIdBytes = 256;
/// Bodies are held to the server's own bounds when they are parsed.
constexpr JsonBounds kLineBounds{.depth = 1000, .elements = 10'000'000};
constexpr std::string_view kResultBegin = R"({"id":"batch_req_)";

bool batched(const Route& route) {
  return route.handler == Handler::json && route.path.starts_with("/v1/") && !is_anthropic(route.api);
}

Status refused(std::string message, std::string param) {
  return invalid(std::move(message), std::move(param), "invalid_line");
}

Status check_line(const Json& line, std::string_view endpoint, BatchLine& out) {
  const std::string* id = json::text(json::given(line, "custom_id"));
  if (id == nullptr || id->empty() || id->size() > kMostIdBytes)
    return refused("custom_id must be a text of 1 to 256 bytes", "custom_id");
  out.custom_id = *id;
  if (!json::is(json::given(line, "method"), "POST")) return refused("method must be \"POST\"", "method");
  const std::string* url = json::text(json::given(line, "url"));
  if (url == nullptr) return refused("url must be one of " + batch_urls(), "url");
  const Route* route = batch_route(*url);
  if (route == nullptr) return refused("url is \"" + cut(*url) + "\"; allowed are " + batch_urls(), "url");
  if (!endpoint.empty() && *url != endpoint)
    return refused("url is \"" + cut(*url) + "\"; the batch's endpoint is " + std::string(endpoint), "url");
  const Json* body = json::given(line, "body");
  if (body == nullptr || !body->is_object()) return refused("body must be an object", "body");
  if (json::is_true(json::member(*body, "stream")))
    return refused("body.stream must not be true: a batch has whole answers", "body.stream");
  out.body = to_text(*body);
  out.route = route;
  return {};
}

}  // namespace

const Route* batch_route(std::string_view url) {
  for (const Route& route : routes()) {
    if (batched(route) && route.path == url) return &route;
  }
  return nullptr;
}

std::string batch_urls() {
  std::vector<std::string_view> urls;
  for (const Route& route : routes()) {
    if (batched(route)) urls.push_back(route.path);
  }
  std::string out;
  for (std::size_t i = 0; i < urls.size(); ++i) {
    out += i == 0 ? "" : i + 1 < urls.size() ? ", " : " or ";
    out += urls[i];
  }
  return out;
}

BatchLine read_batch_line(std::string_view text, std::string_view endpoint) {
  BatchLine out;
  const auto line = parse_json(text, kLineBounds);
  if (!line.ok()) {
    out.refusal = refused("the line is no JSON: " + line.status().message, {});
  } else if (!line->is_object()) {
    out.refusal = refused("the line must be a JSON object", {});
  } else {
    out.refusal = check_line(*line, endpoint, out);
  }
  return out;
}

std::string result_line(const std::string& batch, const LineResult& result) {
  std::string out(kResultBegin);
  out += batch;
  out += '_';
  append_integer(out, static_cast<std::int64_t>(result.line));
  out += R"(","custom_id":)";
  if (result.custom_id.empty()) {
    out += "null";
  } else {
    append_json_string(out, result.custom_id);
  }
  if (result.status == 0) {
    out += R"(,"response":null,"error":{"code":)";
    append_json_string(out, result.error.reason.empty() ? "failed" : result.error.reason);
    out += R"(,"message":)";
    append_json_string(out, result.error.message);
    out += R"(,"param":)";
    if (result.error.param.empty()) {
      out += "null";
    } else {
      append_json_string(out, result.error.param);
    }
    out += R"(,"line":)";
    append_integer(out, static_cast<std::int64_t>(result.line));
    out += "}}\n";
    return out;
  }
  out += R"(,"response":{"status_code":)";
  append_integer(out, result.status);
  out += R"(,"request_id":)";
  append_json_string(out, result.request_id);
  out += R"(,"body":)";
  out += result.body;
  out += R"(},"error":null)";
  if (result.status != 200) {
    out += R"(,"line":)";
    append_integer(out, static_cast<std::int64_t>(result.line));
  }
  out += "}\n";
  return out;
}

std::uint64_t line_of_result(const std::string& batch, std::string_view text) {
  if (!text.starts_with(kResultBegin) || !text.ends_with('}')) return 0;
  text.remove_prefix(kResultBegin.size());
  if (!text.starts_with(batch)) return 0;
  text.remove_prefix(batch.size());
  if (!text.starts_with('_')) return 0;
  text.remove_prefix(1);
  std::uint64_t line = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), line);
  return error == std::errc() && end != text.data() + text.size() && *end == '"' ? line : 0;
}

}  // namespace troupe::http
