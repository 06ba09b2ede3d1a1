#pragma once
// The lines of a batch: requests as a client's file has them (OpenAI's and FastDeploy's JSONL), and results
// as the output files have them.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/server/routes.h"

namespace troupe::http {

/// One request of a batch.
struct BatchLine {
  std::string custom_id;         ///< the client's name of it; empty when the line has none that can be read
  std::string body;              ///< JSON, as the route's parser takes it
  const Route* route = nullptr;  ///< that `url` names; null when the line is refused
  Status refusal;                ///< not ok: why nothing can be asked for
};

/// Reads {"custom_id", "method": "POST", "url", "body": {…}}. `endpoint` is the URL that every line of the
/// batch must name; empty: each may name any that batch_route() knows.
BatchLine read_batch_line(std::string_view text, std::string_view endpoint);

/// The route of a URL that a batch may ask: those under /v1/ with a JSON body and answers of OpenAI's form;
/// null for any other.
const Route* batch_route(std::string_view url);
/// The URLs of these, for messages: "/v1/a, /v1/b or /v1/c".
std::string batch_urls();

/// What a request of a batch has come to.
struct LineResult {
  std::uint64_t line = 0;  ///< of the input file, from 1
  std::string custom_id;   ///< empty: not known
  int status = 0;          ///< of the HTTP answer; 0: there is none, and `error` says why
  std::string request_id;
  std::string body;  ///< JSON
  Status error;
};

/// The result as a line of an output file, with the newline. `batch` is the batch's id, of which with the
/// line's number the id of the result is made.
std::string result_line(const std::string& batch, const LineResult& result);
/// The number of the input's line in a line that result_line() made for this batch, without the newline; 0
/// for anything else, also for the beginning of one.
std::uint64_t line_of_result(const std::string& batch, std::string_view text);

}  // namespace troupe::http
