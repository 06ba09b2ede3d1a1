// `troupe run-batch`: a file of requests in, a file of answers out. With --url a running server computes
// them; else one of its own, which ends with it. Both keep the batch as /v1/batches does, so a call that was
// killed is given again and goes on.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/file_writes.h"
#include "cli/batch_client.h"
#include "cli/bench/server_process.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/progress_line.h"
#include "config/arguments.h"
#include "config/field.h"
#include "http/batch/batch_store.h"
#include "http/client/tls_client.h"

namespace troupe::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(200);
constexpr double kStartSeconds = 1800;
constexpr auto kAbsence = std::chrono::minutes(5);  // of a running server that is being restarted
constexpr const char* kOwnServer = "own";

std::atomic<bool> run_interrupted{false};

struct RunBatch {
  std::string input;
  std::string output;
  std::string state;  ///< directory for what a killed call leaves; empty: that of the output
  std::string url;
  std::string api_key;
  http::TlsTrust trust;
};

std::vector<config::Field> fields_of(RunBatch& run) {
  return {
      {.name = "input-file", .slot = &run.input, .help = "the requests, one JSON object a line; also -i"},
      {.name = "output-file",
       .slot = &run.output,
       .help = "where the answers go, in the order of the requests; also -o"},
      {.name = "output-tmp-dir",
       .slot = &run.state,
       .help = "directory in which OUTPUT.batch keeps what is done, until all is",
       .when_unset = "that of the output"},
      {.name = "url",
       .slot = &run.url,
       .help = "http://HOST:PORT or https://HOST:PORT of a running server with --batch-dir",
       .when_unset = "a server of its own, with the flags of troupe serve that are given"},
      {.name = "api-key", .slot = &run.api_key, .help = "sent to --url as a bearer key", .secret = true},
      {.name = "ca-file",
       .slot = &run.trust.ca_file,
       .help = "PEM file of the authorities whose certificates are trusted, or the server's own certificate",
       .when_unset = "those of the system"},
      {.name = "insecure", .slot = &run.trust.insecure, .help = "takes any certificate; for tests only"},
  };
}

/// Divides the words into those of this command's fields and those for troupe serve.
void divide(int argc, char** argv, const std::vector<config::Field>& fields, std::vector<std::string>& own,
            std::vector<std::string>& of_serve) {
  own.emplace_back(argv[0]);
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "-i") word = "--input-file";
    if (word == "-o") word = "--output-file";
    const std::string name = config::canonical(word.substr(0, word.find('=')).erase(0, 2));
    const auto field = std::ranges::find_if(fields, [&](const auto& f) { return f.name == name; });
    const bool help = word == "-h" || word.starts_with("--help");
    if (!help && (!word.starts_with("--") || field == fields.end())) {
      of_serve.push_back(word);
      continue;
    }
    own.push_back(word);
    if (!help && word.find('=') == word.npos && !config::is_switch(*field) && i + 1 < argc)
      own.emplace_back(argv[++i]);
  }
}

Status check_files(RunBatch& run) {
  if (run.input.empty()) return invalid("--input-file (-i) is missing: the file with the requests");
  if (run.output.empty()) return invalid("--output-file (-o) is missing: where the answers go");
  // A directory of this output's own, since it is removed in the end.
  const std::filesystem::path output(run.output);
  const std::filesystem::path parent =
      run.state.empty() ? output.parent_path() : std::filesystem::path(run.state);
  run.state = (parent / (output.filename().string() + ".batch")).string();
  if (const auto version = name_of_version(run.input); !version.ok()) return version.status();
  if (::mkdir(run.state.c_str(), 0700) != 0 && errno != EEXIST) {
    return failure(Code::not_found, "the directory " + run.state + " cannot be made");
  }
  return {};
}

/// A server of this command: at a port of 127.0.0.1 that the system chooses, closed to all who lack a key
/// that was made for it.
Result<std::unique_ptr<bench::ServerProcess>> start_server(const RunBatch& run, const std::string& key,
                                                           const std::vector<std::string>& of_serve) {
  const std::string keys = run.state + "/key";
  ::unlink(keys.c_str());
  const int fd = ::open(keys.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && write_all(fd, key) == key.size();
  if (fd >= 0) ::close(fd);
  if (!written) return failure(Code::unavailable, keys + " cannot be written");
  std::error_code ignored;
  const std::string directory = std::filesystem::absolute(run.state, ignored).string();
  std::vector<std::string> flags = of_serve;
  flags.insert(flags.end(), {"--host", "127.0.0.1", "--api-key-file", directory + "/key", "--batch-dir",
                             directory + "/server", "--batch-reserved-seqs", "0", "--batch-file-bytes",
                             "1024GiB", "--batch-dir-bytes", "1024GiB"});
  return bench::ServerProcess::start(flags, kStartSeconds);
}

std::string progress_text(const BatchProgress& progress, std::uint64_t begun_with, double seconds) {
  const std::uint64_t done = progress.completed + progress.failed;
  char text[160];
  std::snprintf(text, sizeof text, "run-batch: %s, %llu of %llu requests, %llu with errors, %.1f/s",
                progress.status.c_str(), static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(progress.total),
                static_cast<unsigned long long>(progress.failed),
                static_cast<double>(done - std::min(done, begun_with)) / std::max(seconds, 1e-3));
  return text;
}

/// Waits for the end of the batch, and shows how far it is. A server that is not there may come back within
/// `patience`: it goes on with the batch.
Result<BatchProgress> wait_for(BatchClient& client, const std::string& batch, Duration patience) {
  ProgressLine line;
  const TimePoint begin = Clock::now();
  TimePoint reached = begin;
  std::optional<std::uint64_t> begun_with;
  for (;;) {
    auto progress = client.progress(batch);
    if (progress.status().code == Code::unavailable && Clock::now() - reached < patience &&
        !run_interrupted) {
      line.show("run-batch: waiting for the server: " + progress.status().message);
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    if (!progress.ok()) return progress.status();
    reached = Clock::now();
    if (!begun_with) begun_with = progress->completed + progress->failed;
    line.show(
        progress_text(*progress, *begun_with, std::chrono::duration<double>(Clock::now() - begin).count()));
    if (progress->ended()) return progress;
    if (run_interrupted) return failure(Code::cancelled, "interrupted; the same command goes on with it");
    std::this_thread::sleep_for(kPoll);
  }
}

/// The batch that an earlier call has begun for this input and this server, or a new one.
Result<std::string> batch_of(const RunBatch& run, BatchClient& client, BatchTicket& ticket) {
  if (!ticket.batch.empty()) {
    const auto known = client.progress(ticket.batch);
    if (known.ok()) return ticket.batch;
    if (known.status().code != Code::not_found) return known.status();
  }
  auto begun = client.begin(run.input);
  if (!begun.ok()) return begun.status();
  ticket.batch = *begun;
  if (Status status = write_ticket(run.state + "/ticket.json", ticket); !status.ok()) return status;
  return begun;
}

Result<http::ClientOptions> server_place(const RunBatch& run) {
  const auto place = http::parse_server_url(run.url);
  if (!place.ok()) return place.status();
  http::ClientOptions options{.host = place->host, .port = place->port, .api_key = run.api_key};
  if (!place->tls) return options;
  auto tls = http::make_client_tls(run.trust);
  if (!tls.ok()) return tls.status();
  options.tls = *std::move(tls);
  return options;
}

Result<BatchProgress> run_to_end(const RunBatch& run, const std::vector<std::string>& of_serve) {
  BatchTicket ticket = read_ticket(run.state + "/ticket.json");
  const std::string server = run.url.empty() ? kOwnServer : run.url;
  const auto version = name_of_version(run.input);
  if (!version.ok()) return version.status();
  std::error_code ignored;
  if (ticket.server != server || ticket.input != *version) {
    ticket = {server, *version, {}};
    std::filesystem::remove_all(run.state + "/server", ignored);
  }
  // The owner of the batch in the directory of a server of its own is the key: it stays the same.
  http::ClientOptions place;
  std::unique_ptr<bench::ServerProcess> own;
  if (run.url.empty()) {
    const std::string key_path = run.state + "/key";
    std::string key;
    std::getline(std::ifstream(key_path) >> std::ws, key);
    if (ticket.batch.empty() || key.empty()) key = http::BatchStore::fresh_id("run-batch-");
    auto started = start_server(run, key, of_serve);
    if (!started.ok()) return started.status();
    own = *std::move(started);
    place = {.port = own->port(), .api_key = key};
  } else {
    auto found = server_place(run);
    if (!found.ok()) return found.status();
    place = *std::move(found);
  }
  place.interrupted = [] { return run_interrupted.load(); };
  BatchClient client(place);
  const auto batch = batch_of(run, client, ticket);
  if (!batch.ok()) return batch.status();
  auto ended = wait_for(client, *batch, own == nullptr ? kAbsence : Duration());
  if (!ended.ok()) return ended;
  if (ended->status == "failed") return failure(Code::unavailable, "the batch has failed: " + ended->error);
  if (Status status = client.fetch(*batch, *ended, run.output); !status.ok()) return status;
  return ended;
}

}  // namespace

int run_batch_main(int argc, char** argv) {
  const Synopsis synopsis{
      "run-batch", "runs a file of requests (JSONL) and writes their answers",
      "troupe run-batch -i FILE -o FILE [--url URL] [FLAGS OF troupe serve]",
      "  troupe run-batch -i requests.jsonl -o answers.jsonl --model /models/ERNIE-4.5-0.3B-PT\n"
      "  troupe run-batch -i requests.jsonl -o answers.jsonl --url http://127.0.0.1:8180\n"
      "  A line: {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": "
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}}\n"
      "  Other URLs: /v1/completions, /v1/responses, /v1/embeddings\n"};
  RunBatch run;
  const std::vector<config::Field> fields = fields_of(run);
  std::vector<std::string> own, of_serve, words;
  divide(argc, argv, fields, own, of_serve);
  std::vector<char*> pointers;
  for (std::string& word : own) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  if (const auto code =
          read_command_line(static_cast<int>(own.size()), pointers.data(), synopsis, fields, words))
    return *code;
  if (!run.url.empty() && !of_serve.empty()) {
    return fail(synopsis,
                invalid("unexpected \"" + of_serve.front() + "\": with --url the server runs already"));
  }
  if (Status status = check_files(run); !status.ok()) return fail(synopsis, status);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, [](int) { run_interrupted = true; });
  const auto ended = run_to_end(run, of_serve);
  if (!ended.ok()) return fail(synopsis, ended.status());
  std::error_code ignored;
  std::filesystem::remove_all(run.state, ignored);
  std::fprintf(stderr, "run-batch: %s: %llu answers, %llu errors in %s\n", ended->status.c_str(),
               static_cast<unsigned long long>(ended->completed),
               static_cast<unsigned long long>(ended->failed), run.output.c_str());
  return ended->status == "completed" && ended->failed == 0 ? 0 : 1;
}

}  // namespace troupe::cli
