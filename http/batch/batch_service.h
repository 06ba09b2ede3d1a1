#pragma once
// Files and batches: answers /v1/files and /v1/batches, and asks the requests of batches of the same Backend
// that serves HTTP, behind those of clients (Request::background). One thread of its own, with one mailbox;
// it keeps everything in a BatchStore, so a new process goes on where this one ended.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "config/options.h"
#include "http/api/openai_request.h"
#include "http/batch/batch_run.h"
#include "http/batch/batch_store.h"
#include "http/server/backend.h"

namespace troupe::http {

class BatchService {
 public:
  struct Setup {
    config::BatchOptions options;
    config::LimitOptions limits;
    ModelFacts model;
    std::vector<ModelFacts> more_models;  ///< as of ServerSetup
    std::uint32_t io = 0;                 ///< Exchange::io of the requests of batches
    std::size_t concurrency = 1;          ///< sequences of these, given to the Backend at once
    std::function<void(std::uint32_t io, std::vector<Output>&& outputs)> deliver;  ///< to clients
    std::function<std::int64_t()> unix_seconds;
    Log log;
  };

  BatchService(BatchStore store, Setup setup);
  ~BatchService();  ///< stops

  /// In front of API keys when they are named as owners of files. Any thread.
  const std::string& salt() const { return store_.salt(); }

  /// Goes on with the batches that have not ended. `engine` outlives stop().
  void start(Backend& engine);

  // Any thread; none of these waits for a disk.
  /// Takes the body of a file that a client sends. Not ok: `content_type` is not multipart/form-data.
  Result<std::unique_ptr<BodySink>> receive(std::string_view content_type) const;
  /// A call with a StoreRequest: its answer is delivered.
  void submit(Call&& call);
  /// Outputs for `Setup::io`.
  void take(std::vector<Output>&& outputs);
  /// No request is asked for any more, and those in flight are given up: they are asked again by the next
  /// server.
  void drain();

  /// Ends the thread; what has been answered is on the disk. Idempotent.
  void stop();

 private:
  struct Active {
    std::unique_ptr<BatchRun> run;  ///< null: its files are not open
    std::optional<BatchStatus> ending;
    bool changed = false;  ///< since its state was kept
    bool counted = false;  ///< its results were, while it waits for its turn
  };
  struct Asked {
    std::string batch;
    BatchRun::Next next;
    std::string request_id;
    std::size_t sequences = 1;
  };

  void loop();
  void work();
  void answer(Call& call);
  Output answer_files(const StoreRequest& request);
  Output answer_file(const StoreRequest& request);
  Output answer_batches(const StoreRequest& request);
  Output answer_batch(const StoreRequest& request);
  Result<StoredFile> keep(const StoreRequest& request);
  Result<Batch> create(const StoreRequest& request);
  Output remove_file(const StoreRequest& request);

  BatchPaths paths_of(const Batch& batch) const;
  std::size_t most_line_bytes() const;
  Status open_files(const Batch& batch, Active& active);
  void begin(Batch batch, Active& active, bool opens);
  bool may_ask() const;
  void ask_more();
  void ask(const std::string& batch, Active& active, BatchRun::Next next);
  Asked forget_asked(std::map<std::uint64_t, Asked>::iterator one);
  void take_result(const Output& output);
  void withdraw(const std::string& batch, Active& active);
  void keep_results(bool now);
  void end_batches();
  Status write_last_lines(const Batch& batch, Active& active);
  Status show_files(Batch& batch, const BatchResults& results);
  void finish(Batch batch, Active& active);
  void put(const Batch& batch);
  void keep_in_memory(const Batch& batch, const Status& why);
  std::int64_t now_s() const { return setup_.unix_seconds(); }

  BatchStore store_;
  const Setup setup_;
  Backend* engine_ = nullptr;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<Call> calls_;  // guarded by mutex_, as the next four
  std::vector<Output> outputs_;
  bool draining_ = false;
  bool stopping_ = false;

  // Of the thread.
  std::map<std::string, Active> active_;  ///< by the batch's id
  std::vector<std::string> order_;        ///< of these, by creation
  std::map<std::uint64_t, Asked> asked_;  ///< by exchange
  std::size_t sequences_asked_ = 0;       ///< of these requests
  std::uint64_t next_exchange_ = 1;
  bool drained_ = false;
  TimePoint ask_again_{};  ///< not before: the server was full
  TimePoint synced_{};
  TimePoint kept_{};
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace troupe::http
