#include "fetch/download.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fetch/checksum.h"

namespace troupe::fetch {
namespace {

constexpr int kMaxFailures = 6;   // of a piece, in a row, without a byte in between
constexpr int kMaxWrongSums = 2;  // of a file
constexpr int kPollMilliseconds = 100;
constexpr double kTellSeconds = 0.2;
constexpr const char* kNoRanges = "no_ranges";  // Status::reason: the whole file came instead of a range

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// True for "bytes BEGIN-…/SIZE" or "bytes BEGIN-…/*".
bool is_answer_to(const std::string& content_range, const ByteRange& range, std::uint64_t size) {
  const std::string begin = "bytes " + std::to_string(range.begin) + "-";
  const std::size_t slash = content_range.find('/');
  if (!content_range.starts_with(begin) || slash == std::string::npos) return false;
  const std::string total = content_range.substr(slash + 1);
  return total == "*" || total == std::to_string(size);
}

}  // namespace

Download::Download(Repository repository, std::filesystem::path folder, DownloadSettings settings,
                   std::function<void(const Progress&)> tell, const std::atomic<bool>& stop)
    : repository_(std::move(repository)),
      folder_(std::move(folder)),
      settings_(settings),
      tell_(std::move(tell)),
      stop_(stop),
      lanes_(stop) {}

Status Download::open(const std::vector<RemoteFile>& files) {
  // Files without a sum are told apart by the hub's revision at least.
  const std::string version = std::to_string(static_cast<int>(repository_.hub.source)) + " " +
                              repository_.name + " " + repository_.revision;
  for (const RemoteFile& file : files) {
    auto part =
        PartFile::open(folder_, file, file.sum.kind == SumKind::none ? version : "", settings_.piece_bytes);
    if (!part.ok()) return part.status();
    files_.push_back({*std::move(part)});
    progress_.bytes_total += file.size;
  }
  progress_.files_total = files.size();
  count_bytes();
  return {};
}

void Download::count_bytes() {
  progress_.bytes_done = 0;
  progress_.files_done = 0;
  for (const Fetched& file : files_) {
    progress_.bytes_done += file.part.bytes_done();
    if (file.part.verified()) ++progress_.files_done;
  }
}

void Download::queue_pieces(std::size_t file) {
  const PartFile& part = files_[file].part;
  for (std::size_t i = 0; i < part.pieces(); ++i) {
    const ByteRange missing = part.missing(i);
    if (missing.begin < missing.end) waiting_.push_back({file, i});
  }
}

Status Download::run() {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].part.verified()) continue;
    queue_pieces(i);
    check_when_complete(i);
  }
  double told_s = 0;
  while (progress_.files_done < files_.size()) {
    if (stop_) return failure(Code::cancelled, "stopped");
    start_pieces();
    for (const Lanes::Finished& finished : lanes_.run(kPollMilliseconds)) {
      if (Status s = settle(finished); !s.ok()) return s;
    }
    if (Status s = collect_checks(); !s.ok()) return s;
    count_bytes();
    if (now_s() - told_s < kTellSeconds) continue;
    told_s = now_s();
    rate_.add(told_s, progress_.bytes_done);
    progress_.bytes_per_s = rate_.bytes_per_s();
    tell_(progress_);
  }
  tell_(progress_);
  return {};
}

void Download::start_pieces() {
  for (std::size_t looked_at = waiting_.size(); looked_at > 0; --looked_at) {
    if (lanes_.busy() >= static_cast<std::size_t>(settings_.connections)) return;
    Piece piece = waiting_.front();
    waiting_.pop_front();
    Fetched& file = files_[piece.file];
    if (piece.not_before_s > now_s()) {
      waiting_.push_back(piece);
      continue;
    }
    GetRequest ask = file_request(repository_, file.part.file().path);
    if (!file.one_piece) ask.range = file.part.missing(piece.index);
    piece.done_at_start = file.part.missing(piece.index).begin;
    ++file.transfers;
    const std::size_t lane = next_lane_++;
    running_.emplace(lane, piece);
    lanes_.start(lane, std::move(ask), [this, lane](const AnswerHead& head, std::string_view bytes) {
      const Piece& at = running_.at(lane);
      return take(files_[at.file], at, head, bytes);
    });
  }
}

Status Download::take(Fetched& file, const Piece& piece, const AnswerHead& head, std::string_view bytes) {
  const RemoteFile& remote = file.part.file();
  const ByteRange missing = file.part.missing(piece.index);
  if (missing.begin == piece.done_at_start) {  // the first bytes of this answer
    if (head.content_type == "text/html" && !remote.path.ends_with(".html")) {
      return invalid(remote.path + ": " + repository_.hub.endpoint +
                     " answered with a web page (text/html) instead of the file. Does a proxy or a login "
                     "page stand in between?");
    }
    if (!file.one_piece && head.status != 206) {
      Status whole = failure(Code::unavailable, remote.path + ": the server sends no parts of files");
      whole.reason = kNoRanges;
      return whole;
    }
    if (!file.one_piece && !is_answer_to(head.content_range, missing, remote.size)) {
      return invalid(remote.path + ": asked for the bytes from " + std::to_string(missing.begin) + " of " +
                     std::to_string(remote.size) + ", the server sent \"" + head.content_range.substr(0, 80) +
                     "\"");
    }
  }
  return file.part.write(piece.index, bytes);
}

Status Download::settle(const Lanes::Finished& finished) {
  const auto found = running_.find(finished.id);
  Piece piece = found->second;
  running_.erase(found);
  Fetched& file = files_[piece.file];
  --file.transfers;
  const Status& status = finished.outcome.status;
  if (status.reason == kNoRanges) file.restart = true;
  if (file.restart) return file.transfers > 0 ? Status{} : settle_restart(piece.file);

  const ByteRange missing = file.part.missing(piece.index);
  const bool arrived = missing.begin > piece.done_at_start;
  if (status.ok() && missing.begin == missing.end) {
    check_when_complete(piece.file);
    return {};
  }
  if (!status.ok() && !finished.outcome.transient) return explain(repository_, status);
  // A cut connection: the rest of the piece is asked for again, at once if something came.
  piece.failures = arrived ? 0 : piece.failures + 1;
  if (piece.failures >= kMaxFailures) {
    const std::string why = status.ok() ? "the server ends its answers too early" : status.message;
    return failure(Code::unavailable, file.part.file().path + ": given up after " +
                                          std::to_string(kMaxFailures) + " attempts: " + why +
                                          ". The same command goes on from here");
  }
  piece.not_before_s =
      piece.failures == 0 ? 0 : now_s() + retry_delay_s(piece.failures, finished.retry_after_s);
  if (file.one_piece) {
    if (Status s = file.part.forget(piece.index); !s.ok()) return s;
  }
  waiting_.push_front(piece);
  return {};
}

/// All transfers of a file whose server sends no ranges have ended: it is asked for as a whole.
Status Download::settle_restart(std::size_t index) {
  Fetched& file = files_[index];
  std::erase_if(waiting_, [&](const Piece& piece) { return piece.file == index; });
  file.restart = false;
  file.one_piece = true;
  if (Status s = file.part.restart(true); !s.ok()) return s;
  queue_pieces(index);
  return {};
}

void Download::check_when_complete(std::size_t index) {
  Fetched& file = files_[index];
  if (!file.part.complete() || file.checking.valid()) return;
  file.checking = std::async(std::launch::async, [this, &file] {
    return verify_sum(file.part.descriptor(), file.part.file(), stop_);
  });
}

Status Download::collect_checks() {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::future<Status>& checking = files_[i].checking;
    if (!checking.valid() || checking.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      continue;
    if (Status s = end_check(i, checking.get()); !s.ok()) return s;
  }
  return {};
}

Status Download::end_check(std::size_t index, const Status& result) {
  Fetched& file = files_[index];
  if (result.ok()) return file.part.set_verified();
  if (result.code != Code::invalid_argument) return result;
  Status restarted = file.part.restart(file.one_piece);  // wrong bytes must not be kept, whatever follows
  if (!restarted.ok()) return restarted;
  if (++file.wrong_sums >= kMaxWrongSums) {
    return failure(Code::unavailable,
                   result.message + ". It was fetched " + std::to_string(kMaxWrongSums) + " times");
  }
  queue_pieces(index);
  return {};
}

}  // namespace troupe::fetch
