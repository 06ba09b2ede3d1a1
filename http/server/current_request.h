#pragma once
// The request that a connection is busy with: what its head said, what was decided by it, and its line in the
// access log.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "http/server/backend.h"
#include "http/server/request_handler.h"

namespace troupe::http {

/// One request after the other on one connection. Used by one thread.
class CurrentRequest {
 public:
  /// Its first byte is awaited, or there, since `now`.
  void await(TimePoint now) { since_ = now; }

  /// Its head was read. `id`: its x-request-id, or empty: set_id() follows. `target` is cut for the log.
  void begin(std::string_view method, std::string_view target, std::string_view id);
  void set_id(std::string id) { id_ = std::move(id); }
  void admit(Admission admission) { admission_ = std::move(admission); }
  /// For a connection or a client beyond a limit: the answer is this instead.
  void refuse(Status status) { admission_.refusal = std::move(status); }
  /// Whom it counts for: client_identity().
  void set_client(std::string client) { client_ = std::move(client); }
  void set_body_bytes(std::size_t bytes) { body_bytes_ = bytes; }

  /// Instead of begin() and admit(), for one that is refused although its head was not read. set_id()
  /// follows.
  void begin_unread();

  /// True from begin() or begin_unread() until end().
  bool begun() const { return begun_; }
  /// It is answered, or its client has left. False when it was not begun: there is nothing to record then.
  bool end();

  const std::string& id() const { return id_; }
  const Admission& admission() const { return admission_; }
  const Status& refusal() const { return admission_.refusal; }
  /// The form of its errors.
  Api api() const { return admission_.match.api(); }
  bool serves(Handler handler) const { return admission_.match.serves(handler); }
  bool is_head() const { return method_ == "HEAD"; }
  std::size_t body_bytes() const { return body_bytes_; }

  /// Fills all of `call` but its body. `received`: when the last byte had been read.
  void describe(Call& call, Exchange exchange, TimePoint received) const;

  /// Views of this. `bytes`: of the answer's body; `failed`: an error is among the events of a stream.
  AccessRecord record(std::uint16_t status, bool failed, std::uint64_t bytes, TimePoint now) const;

 private:
  Admission admission_;
  std::string id_;
  std::string client_;
  std::string method_;
  std::string target_;
  TimePoint since_{};
  std::size_t body_bytes_ = 0;
  bool begun_ = false;
};

}  // namespace troupe::http
