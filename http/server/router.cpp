#include "http/server/router.h"

#include "http/pages/pages.h"

namespace troupe::http {
namespace {

enum Methods : std::uint8_t { kGet = 1, kPost = 2 };

struct Row {
  std::string_view path;
  Handler handler;
  std::uint8_t methods;
  Pages pages;  // `both`: on every listener
};

constexpr Row kRows[] = {
    {"/v1/chat/completions", Handler::chat, kPost, Pages::api},
    {"/v1/completions", Handler::completions, kPost, Pages::api},
    {"/v1/responses", Handler::responses, kPost, Pages::api},
    {"/v1/messages", Handler::messages, kPost, Pages::api},
    {"/v1/messages/count_tokens", Handler::count_tokens, kPost, Pages::api},
    {"/v1/models", Handler::models, kGet, Pages::api},
    {"/tokenize", Handler::tokenize, kPost, Pages::api},
    {"/detokenize", Handler::detokenize, kPost, Pages::api},
    {"/health", Handler::health, kGet, Pages::both},
    {"/health/ready", Handler::health, kGet, Pages::both},
    {"/health/live", Handler::live, kGet, Pages::both},
    {"/ping", Handler::health, kGet | kPost, Pages::both},
    {"/metrics", Handler::metrics, kGet, Pages::operations},
    {"/config-info", Handler::config_info, kGet, Pages::operations},
    {"/openapi.json", Handler::openapi, kGet, Pages::api},
    {"/v1/troupe/events", Handler::events, kGet, Pages::api},
    {"/reset_prefix_cache", Handler::reset_prefix_cache, kPost, Pages::api},
};
constexpr std::string_view kModelPrefix = "/v1/models/";

bool served(Pages row, Pages listener) {
  return row == Pages::both || listener == Pages::both || row == listener;
}

Route match(const Row& row, std::string_view method, std::string_view tail) {
  const bool get = (row.methods & kGet) != 0;
  const bool post = (row.methods & kPost) != 0;
  if ((get && (method == "GET" || method == "HEAD")) || (post && method == "POST"))
    return {row.handler, {}, tail, style_of(row.handler)};
  const std::string_view allow = get && post ? "GET, HEAD, POST, OPTIONS" : get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
  const Handler handler = method == "OPTIONS" ? Handler::options : Handler::method_not_allowed;
  return {handler, allow, {}, style_of(row.handler)};
}

}  // namespace

Route route(std::string_view method, std::string_view path, Pages pages) {
  for (const Row& row : kRows) {
    if (row.path == path && served(row.pages, pages)) return match(row, method, {});
  }
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size() && served(Pages::api, pages)) {
    return match({{}, Handler::model, kGet, Pages::api}, method, path.substr(kModelPrefix.size()));
  }
  if (served(Pages::api, pages) && find_page(path) != nullptr) return match({{}, Handler::page, kGet, Pages::api}, method, path);
  if (path == "*" && method == "OPTIONS") return {Handler::options, "GET, HEAD, POST, OPTIONS", {}, AnswerStyle::openai};
  return {};
}

}  // namespace troupe::http
