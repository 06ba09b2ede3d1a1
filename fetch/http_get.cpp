#include "fetch/http_get.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace troupe::fetch {
namespace {

constexpr long kConnectSeconds = 20;
constexpr long kSilentSeconds = 60;  // a connection that brings nothing for this long has failed
constexpr long kMaxRedirects = 5;
constexpr int kPageAttempts = 4;

void start_library() {
  [[maybe_unused]] static const bool started = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.back() == '\r' || text.back() == '\n' || text.back() == ' '))
    text.remove_suffix(1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

/// The target of `<URL>; rel="next"` in the value of a Link header.
std::string next_link(std::string_view value) {
  const std::size_t mark = value.find("rel=\"next\"");
  const std::size_t end = mark == std::string_view::npos ? mark : value.rfind('>', mark);
  const std::size_t begin = end == std::string_view::npos ? end : value.rfind('<', end);
  return begin == std::string_view::npos ? std::string()
                                         : std::string(value.substr(begin + 1, end - begin - 1));
}

bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SSL_CONNECT_ERROR: return true;
    default: return false;
  }
}

bool is_transient_status(long status) {
  return status == 408 || status == 425 || status == 429 || status >= 500;
}

}  // namespace

struct HttpGet::State {
  GetRequest request;
  Body body;
  const std::atomic<bool>& stop;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  char error[CURL_ERROR_SIZE] = {};
  AnswerHead head;
  Status refused;  ///< by the body

  static std::size_t on_header(char* bytes, std::size_t, std::size_t count, void* self);
  static std::size_t on_body(char* bytes, std::size_t, std::size_t count, void* self);
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<State*>(self)->stop ? 1 : 0;
  }
};

std::size_t HttpGet::State::on_header(char* bytes, std::size_t, std::size_t count, void* self) {
  AnswerHead& head = static_cast<State*>(self)->head;
  const std::string_view line(bytes, count);
  if (line.starts_with("HTTP/")) head = {};  // of the next answer after a redirect
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return count;
  const std::string name = lower(line.substr(0, colon));
  const std::string_view value = trim(line.substr(colon + 1));
  if (name == "content-type") head.content_type = lower(trim(value.substr(0, value.find(';'))));
  if (name == "content-range") head.content_range = std::string(value);
  if (name == "link") head.next = next_link(value);
  return count;
}

std::size_t HttpGet::State::on_body(char* bytes, std::size_t, std::size_t count, void* self) {
  State& state = *static_cast<State*>(self);
  curl_easy_getinfo(state.easy, CURLINFO_RESPONSE_CODE, &state.head.status);
  if (state.head.status < 200 || state.head.status > 299) return count;
  state.refused = state.body(state.head, {bytes, count});
  return state.refused.ok() ? count : 0;
}

HttpGet::HttpGet(GetRequest request, Body body, const std::atomic<bool>& stop)
    : state_(std::make_unique<State>(State{std::move(request), std::move(body), stop})) {
  start_library();
  State& state = *state_;
  state.easy = curl_easy_init();
  if (state.easy == nullptr) return;
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(state.easy, option, value); };
  set(CURLOPT_URL, state.request.url.c_str());
  set(CURLOPT_USERAGENT, "troupe");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_ERRORBUFFER, state.error);
  set(CURLOPT_PRIVATE, this);
  // No step down from https to http, neither in the URL nor in a redirect.
  const char* protocols = state.request.url.starts_with("https:") ? "https" : "http,https";
  set(CURLOPT_PROTOCOLS_STR, protocols);
  set(CURLOPT_REDIR_PROTOCOLS_STR, protocols);
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, kMaxRedirects);
  set(CURLOPT_HTTP_VERSION,
      static_cast<long>(CURL_HTTP_VERSION_1_1));  // parallel ranges need connections of their own
  set(CURLOPT_BUFFERSIZE, 512L << 10);
  set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  set(CURLOPT_HEADERFUNCTION, &State::on_header);
  set(CURLOPT_HEADERDATA, state_.get());
  set(CURLOPT_WRITEFUNCTION, &State::on_body);
  set(CURLOPT_WRITEDATA, state_.get());
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &State::on_progress);
  set(CURLOPT_XFERINFODATA, state_.get());
  if (!state.request.authorization.empty()) {
    // libcurl drops a header of this name when a redirect leads to another host, port or protocol.
    state.headers = curl_slist_append(nullptr, ("Authorization: " + state.request.authorization).c_str());
    set(CURLOPT_HTTPHEADER, state.headers);
  }
  if (state.request.range) {
    const ByteRange& range = *state.request.range;
    set(CURLOPT_RANGE, (std::to_string(range.begin) + "-" + std::to_string(range.end - 1)).c_str());
  }
}

HttpGet::~HttpGet() {
  curl_easy_cleanup(state_->easy);
  curl_slist_free_all(state_->headers);
}

void* HttpGet::handle() const { return state_->easy; }
const AnswerHead& HttpGet::head() const { return state_->head; }

Outcome HttpGet::perform() {
  return finish(state_->easy == nullptr ? CURLE_FAILED_INIT : curl_easy_perform(state_->easy));
}

Outcome HttpGet::finish(int code) {
  State& state = *state_;
  const auto result = static_cast<CURLcode>(code);
  if (state.stop) return {failure(Code::cancelled, "stopped")};
  if (!state.refused.ok()) return {state.refused};
  const std::string& url = state.request.url;
  if (result != CURLE_OK) {
    const char* why = state.error[0] != '\0' ? state.error : curl_easy_strerror(result);
    long proxy_status = 0;  // of a proxy that was asked for a tunnel
    curl_easy_getinfo(state.easy, CURLINFO_HTTP_CONNECTCODE, &proxy_status);
    const bool refused = proxy_status >= 400 && !is_transient_status(proxy_status);
    return {failure(Code::unavailable, url + ": " + why), is_transient(result) && !refused};
  }
  AnswerHead& head = state.head;
  curl_easy_getinfo(state.easy, CURLINFO_RESPONSE_CODE, &head.status);
  curl_off_t wait = 0;
  if (curl_easy_getinfo(state.easy, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK)
    head.retry_after_s = static_cast<double>(wait);
  if (head.status >= 200 && head.status <= 299) return {};
  const std::string said = url + " answered " + std::to_string(head.status);
  if (head.status == 401 || head.status == 403) return {failure(Code::unauthorized, said)};
  if (head.status == 404 || head.status == 410) return {failure(Code::not_found, said)};
  return {failure(Code::unavailable, said), is_transient_status(head.status)};
}

double retry_delay_s(int failures, double retry_after_s) {
  const double own = std::min(0.5 * static_cast<double>(1 << std::clamp(failures - 1, 0, 4)), 8.0);
  return std::max(own, std::min(retry_after_s, 60.0));
}

Result<std::string> get_page(const GetRequest& request, std::size_t limit, const std::atomic<bool>& stop,
                             AnswerHead* head) {
  for (int attempt = 1;; ++attempt) {
    std::string page;
    HttpGet get(
        request,
        [&](const AnswerHead&, std::string_view bytes) -> Status {
          if (page.size() + bytes.size() > limit) {
            return invalid(request.url + ": the answer is larger than " + std::to_string(limit) + " bytes");
          }
          page += bytes;
          return {};
        },
        stop);
    const Outcome outcome = get.perform();
    if (outcome.status.ok()) {
      if (head != nullptr) *head = get.head();
      return page;
    }
    if (!outcome.transient || attempt == kPageAttempts) return outcome.status;
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(retry_delay_s(attempt, get.head().retry_after_s));
    while (!stop && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace troupe::fetch
