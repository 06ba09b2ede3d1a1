#pragma once
// One HTTP GET through libcurl: redirects, proxies, time limits, and what a failure means. Only this pair of
// files and lanes.* know libcurl. libcurl itself reads the variables of proxies (https_proxy, no_proxy, …).
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::fetch {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  ///< one past the last byte
};

struct GetRequest {
  std::string url;
  std::string authorization;  ///< value of that header, or empty; never sent to another host after a redirect
  std::optional<ByteRange> range;
};

/// The head of the last answer, after redirects.
struct AnswerHead {
  long status = 0;
  std::string content_type;   ///< lower case, without parameters
  std::string content_range;  ///< as sent, or empty
  std::string next;           ///< URL of the link with rel="next", or empty
  double retry_after_s = 0;
};

struct Outcome {
  Status status;
  bool transient = false;  ///< failed, but the same request may succeed later
};

class HttpGet {
 public:
  /// Takes the next part of a 2xx answer's body. The first error ends the transfer and becomes its outcome.
  using Body = std::function<Status(const AnswerHead&, std::string_view bytes)>;

  /// `stop` becoming true cancels the transfer; it must outlive this object.
  HttpGet(GetRequest request, Body body, const std::atomic<bool>& stop);
  ~HttpGet();
  HttpGet(const HttpGet&) = delete;
  HttpGet& operator=(const HttpGet&) = delete;

  /// Runs the transfer to its end.
  Outcome perform();

  /// The CURL*, to run it among others; finish() then takes its CURLcode.
  void* handle() const;
  Outcome finish(int code);

  const AnswerHead& head() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The body of a page of at most `limit` bytes, retried a few times. `next` gets the head's next.
Result<std::string> get_page(const GetRequest& request, std::size_t limit, const std::atomic<bool>& stop,
                             AnswerHead* head = nullptr);

/// Waits for a retry: half a second, doubled with each failure in a row, at most 8 s; what the server asked
/// for counts if it is longer, up to a minute.
double retry_delay_s(int failures, double retry_after_s);

}  // namespace troupe::fetch
