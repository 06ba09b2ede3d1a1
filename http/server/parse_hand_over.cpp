#include "http/server/parse_hand_over.h"

#include <memory>

#include "http/api/openai_error.h"

namespace troupe::http {
namespace {

constexpr std::size_t kParseHere = 32 << 10;  // on the I/O thread, up to this size
constexpr std::size_t kLargeBody =
    256 << 10;  // above this on a thread of their own, so that they delay none of the others

}  // namespace

bool ParseHandOver::wants(std::size_t body_bytes) { return body_bytes > kParseHere; }

ParseThread& ParseHandOver::thread_for(std::size_t body_bytes) {
  return shared_.parsers[body_bytes > kLargeBody ? 1 : 0];
}

// Frees the body. Not ok when it threw: `outcome` is empty then.
Status ParseHandOver::parse(Job& job, std::optional<Outcome>& outcome) {
  const Status status = shared_.faults.attempt(FaultPlace::parsing, [&] {
    Outcome parsed = shared_.handler.handle(job.admission, job.body, job.known.request_id, shared_.draining);
    if (Call* call = std::get_if<Call>(&parsed)) {
      job.known.body = std::move(call->body);
      job.known.ignored_fields = std::move(call->ignored_fields);
      parsed = std::move(job.known);
    }
    outcome.emplace(std::move(parsed));
  });
  std::string().swap(job.body);
  return status;
}

ParseHandOver::Outcome ParseHandOver::outcome_or_error(std::optional<Outcome>& outcome, const Status& status,
                                                       const Job& job) {
  if (!outcome) outcome.emplace(error_output(0, status, 0, job.admission.match.api()));
  return *std::move(outcome);
}

void ParseHandOver::discard(Call&& call) {
  shared_.faults.contain(FaultPlace::parsing, [&] {
    ParseThread& thread = thread_for(call.body_bytes);
    thread.post([unwanted = std::make_shared<Call>(std::move(call))] {});
  });
}

}  // namespace troupe::http
