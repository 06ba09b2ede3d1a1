#pragma once
// The requests of one batch: which is asked next, and what each has come to. Knows files and no server.
//
// Every request has exactly one line in the two output files in the end, or none when the batch is cancelled.
// After a death the files say which requests are done; the others are asked for (again).
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "http/batch/batch_line.h"
#include "http/batch/line_files.h"

namespace troupe::http {

/// Where the parts of a batch are.
struct BatchPaths {
  std::string input;
  std::string results;  ///< lines with an answer of 200; made when it is not there
  std::string faults;   ///< the others
};

/// What the two output files of a batch hold on the disk.
struct BatchResults {
  std::uint64_t completed = 0;  ///< lines
  std::uint64_t failed = 0;
  std::uint64_t result_bytes = 0;
  std::uint64_t fault_bytes = 0;
};

class BatchRun {
 public:
  struct Next {
    std::uint64_t line = 0;
    BatchLine request;  ///< its refusal is ok
    int tries = 0;      ///< how often nothing could answer it
  };

  /// `id`: of the batch. `most_line_bytes`: of a request; longer ones are refused one by one. The requests
  /// whose lines are in the output files count as done.
  static Result<std::unique_ptr<BatchRun>> open(const BatchPaths& paths, std::string id, std::string endpoint,
                                                std::size_t most_line_bytes);
  /// Requests in a file; not ok (invalid_argument) for none, or more than may be in one batch.
  static Result<std::uint64_t> count(const std::string& path, std::size_t most_line_bytes);

  /// Reads the output files of a batch that is not open; one that is not there has no lines. The end of a
  /// line that was being written at a death is removed.
  static Result<BatchResults> stored(const BatchPaths& paths, const std::string& id);

  /// The next request to ask for; those that cannot be asked for have got their lines. Nothing when none is
  /// left, or those that are left are in flight.
  std::optional<Next> next();
  /// What a request of next() has come to.
  void finish(LineResult result);
  /// A request of next() is asked for again, before others: the server could not take it.
  void put_back(Next request) {
    --in_flight_;
    again_.push_back(std::move(request));
  }
  /// Every request that has no line gets this error. None may be in flight.
  void give_up(const Status& why);

  /// Writes the lines to the disk. Not ok: the disk is full or broken.
  Status sync();
  /// Bytes of lines that wait for it.
  std::size_t pending() const { return results_.pending() + faults_.pending(); }
  /// Why the input could not be read on.
  const Status& status() const { return reader_.status(); }

  std::uint64_t in_flight() const { return in_flight_; }
  /// True when every request has its line. Never, if the input could not be read on.
  bool done() const { return exhausted_ && status().ok() && in_flight_ == 0 && again_.empty(); }
  std::uint64_t completed() const { return completed_; }
  std::uint64_t failed() const { return failed_; }
  /// As stored() would read them, if sync() was ok.
  BatchResults results() const { return {completed_, failed_, results_.bytes(), faults_.bytes()}; }

 private:
  BatchRun(std::string id, std::string endpoint, LineReader reader, LineAppender results, LineAppender faults)
      : id_(std::move(id)),
        endpoint_(std::move(endpoint)),
        reader_(std::move(reader)),
        results_(std::move(results)),
        faults_(std::move(faults)) {}

  std::optional<Next> read_next(const Status* instead);
  void record(const LineResult& result);

  const std::string id_;
  const std::string endpoint_;
  LineReader reader_;
  LineAppender results_;
  LineAppender faults_;
  std::unordered_set<std::uint64_t> finished_;  ///< lines that had a result when the files were opened
  std::unordered_set<std::uint64_t> ids_;       ///< hashes of the custom_ids so far
  std::deque<Next> again_;
  std::uint64_t in_flight_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t failed_ = 0;
  bool exhausted_ = false;
};

}  // namespace troupe::http
