#pragma once
// A batch of a server (/v1/files, /v1/batches), as its client: what `troupe run-batch` asks for, and the
// answers put together in the order of the requests.
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "http/client/client.h"

namespace troupe::cli {

/// What is known of a batch that a client has begun; kept in a file, so that the next call goes on with it.
struct BatchTicket {
  std::string server;  ///< whose batch it is
  std::string input;   ///< size and time of the file with the requests
  std::string batch;   ///< its id on the server; empty: none was begun
};

/// An empty ticket when there is no such file, or it is no ticket.
BatchTicket read_ticket(const std::string& path);
Status write_ticket(const std::string& path, const BatchTicket& ticket);

/// Size and time of a file, in one word. not_found when it cannot be read.
Result<std::string> name_of_version(const std::string& path);

struct BatchProgress {
  std::string status;
  std::uint64_t total = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::string results;  ///< ids of files; empty: there is none
  std::string faults;
  std::string error;  ///< why the batch has failed

  bool ended() const;
};

/// Used by one thread.
class BatchClient {
 public:
  explicit BatchClient(http::ClientOptions options) : client_(std::move(options)) {}

  /// Sends the file with the requests and begins a batch of them; its id. All requests must be for the URL of
  /// the first that has one.
  Result<std::string> begin(const std::string& path);
  Result<BatchProgress> progress(const std::string& batch);
  /// Writes the answers and errors of a batch that has ended to `path`, in the order of the requests, by way
  /// of files beside `path`.
  Status fetch(const std::string& batch, const BatchProgress& ended, const std::string& path);

 private:
  Result<std::string> ask(const std::string& method, const std::string& target, const std::string& body);
  Status save(const std::string& file, const std::string& path);

  http::Client client_;
};

}  // namespace troupe::cli
