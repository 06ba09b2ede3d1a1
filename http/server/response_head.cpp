#include "http/server/response_head.h"

#include <charconv>

#include "http/api/json_text.h"

namespace troupe::http {
namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

void append_response_head(std::string& out, const ResponseHead& head,
                          const std::vector<std::pair<std::string, std::string>>& extra) {
  out.append("HTTP/1.1 ");
  append_integer(out, head.status);
  out.push_back(' ');
  out.append(reason_phrase(head.status)).append("\r\n");
  append_header(out, "Date", head.date);
  append_header(out, "Server", "troupe");
  if (!head.content_type.empty()) append_header(out, "Content-Type", head.content_type);
  if (!head.request_id.empty()) append_header(out, "x-request-id", head.request_id);
  if (!head.allow.empty()) append_header(out, "Allow", head.allow);
  if (!head.ignored.empty()) {
    append_header(out, "x-troupe-ignored", head.ignored);
    append_header(out, "Warning", "299 troupe \"without effect: " + std::string(head.ignored) + '"');
  }
  if (head.content_length) append_header(out, "Content-Length", std::to_string(*head.content_length));
  if (head.chunked) append_header(out, "Transfer-Encoding", "chunked");
  if (head.stream) {
    append_header(out, "Cache-Control", "no-cache");
    append_header(out, "X-Accel-Buffering", "no");
  }
  if (!head.allow_origin.empty()) {
    append_header(out, "Access-Control-Allow-Origin", head.allow_origin);
    append_header(out, "Access-Control-Expose-Headers",
                  "x-request-id, Retry-After, Warning, x-troupe-ignored, x-troupe-embeddings");
  }
  if (head.vary_origin) append_header(out, "Vary", "Origin");
  for (const auto& [name, value] : extra) append_header(out, name, value);
  if (head.close) append_header(out, "Connection", "close");
  out.append("\r\n");
}

std::string_view content_type(Output::Content content) {
  switch (content) {
    case Output::Content::json: return "application/json";
    case Output::Content::text: return "text/plain; charset=utf-8";
    case Output::Content::metrics: return "text/plain; version=0.0.4; charset=utf-8";
    case Output::Content::html: return "text/html; charset=utf-8";
    case Output::Content::script: return "text/javascript; charset=utf-8";
    case Output::Content::style: return "text/css; charset=utf-8";
    case Output::Content::svg: return "image/svg+xml";
    case Output::Content::events: return "text/event-stream; charset=utf-8";
    case Output::Content::lines: return "application/jsonl";
  }
  return "application/json";
}

std::string ignored_text(const std::vector<std::string>& ignored_fields) {
  std::string text;
  for (const std::string& field : ignored_fields) {
    if (!text.empty()) text += ", ";
    for (const char c : field) text += c > ' ' && c <= '~' && c != '"' && c != '\\' && c != ',' ? c : '?';
  }
  return text;
}

std::string http_date(std::time_t now) {
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  const std::size_t length = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text, length};
}

void append_chunk(std::string& out, std::string_view bytes) {
  if (bytes.empty()) return;
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, bytes.size(), 16).ptr;
  out.append(digits, end).append("\r\n").append(bytes).append("\r\n");
}

}  // namespace troupe::http
