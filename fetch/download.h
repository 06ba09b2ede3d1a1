#pragma once
// Fetches the files of a repository into a folder: in pieces, several at a time, with retries, each file
// checked by its sum. What an earlier process has fetched into the folder is kept.
#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "fetch/hub.h"
#include "fetch/lanes.h"
#include "fetch/part_file.h"
#include "fetch/progress.h"

namespace troupe::fetch {

struct DownloadSettings {
  int connections = 8;
  std::uint64_t piece_bytes = 64 << 20;
};

class Download {
 public:
  /// `tell` is called a few times a second.
  Download(Repository repository, std::filesystem::path folder, DownloadSettings settings,
           std::function<void(const Progress&)> tell, const std::atomic<bool>& stop);

  /// Opens the files and finds out what is there. Once, before run().
  Status open(const std::vector<RemoteFile>& files);

  /// Fetches what is missing. Errors: cancelled after `stop`; what failed in spite of retries, named.
  /// Everything that arrived stays for the next run.
  Status run();

 private:
  struct Fetched {
    PartFile part;
    bool one_piece = false;  ///< the server does not send ranges
    bool restart = false;    ///< as one piece, when its transfers have ended
    int transfers = 0;
    int wrong_sums = 0;
    std::future<Status> checking;
  };
  struct Piece {
    std::size_t file = 0;
    std::size_t index = 0;
    int failures = 0;  ///< in a row without a byte
    double not_before_s = 0;
    std::uint64_t done_at_start = 0;
  };

  void queue_pieces(std::size_t file);
  void start_pieces();
  Status take(Fetched& file, const Piece& piece, const AnswerHead& head, std::string_view bytes);
  Status settle(const Lanes::Finished& finished);
  Status settle_restart(std::size_t file);
  void check_when_complete(std::size_t file);
  Status collect_checks();
  Status end_check(std::size_t file, const Status& result);
  void count_bytes();

  Repository repository_;
  std::filesystem::path folder_;
  DownloadSettings settings_;
  std::function<void(const Progress&)> tell_;
  const std::atomic<bool>& stop_;
  std::deque<Fetched> files_;
  std::deque<Piece> waiting_;
  std::map<std::size_t, Piece> running_;  ///< by lane
  Progress progress_;
  RateMeter rate_;
  std::size_t next_lane_ = 0;
  Lanes lanes_;  ///< last: its transfers write to the files above
};

}  // namespace troupe::fetch
