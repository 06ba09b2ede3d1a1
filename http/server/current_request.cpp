#include "http/server/current_request.h"

#include <utility>

namespace troupe::http {
namespace {

constexpr std::size_t kLoggedTarget = 256;  // bytes; AccessRecord::target

}  // namespace

void CurrentRequest::begin(std::string_view method, std::string_view target, std::string_view id) {
  begun_ = true;
  method_ = method;
  target_ = path_of(target).substr(0, kLoggedTarget);
  id_ = id;
}

void CurrentRequest::begin_unread() {
  begun_ = true;
  admission_ = {};
  method_.clear();
  target_.clear();
}

bool CurrentRequest::end() { return std::exchange(begun_, false); }

void CurrentRequest::describe(Call& call, Exchange exchange, TimePoint received) const {
  call.exchange = exchange;
  call.request_id = id_;
  call.received = received;
  call.body_bytes = body_bytes_;
  call.client = client_;
}

AccessRecord CurrentRequest::record(std::uint16_t status, bool failed, std::uint64_t bytes,
                                    TimePoint now) const {
  return {.request_id = id_,
          .method = method_,
          .target = target_,
          .route = admission_.match.named,
          .status = status,
          .failed = failed,
          .bytes = bytes,
          .duration = now - since_};
}

}  // namespace troupe::http
