#include "actors/media/url_process.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "actors/supervisor/child_process.h"
#include "base/clock.h"
#include "base/percent.h"
#include "base/utf8.h"
#include "config/child_environment.h"
#include "ipc/memory_file.h"

namespace troupe {
namespace {

constexpr auto kEndLook = std::chrono::milliseconds(100);  ///< how often a wait looks whether it is given up
constexpr std::size_t kMostUrlBytes = 8 << 10;
constexpr std::size_t kMostSaid = 1024;

Status not_allowed(std::string why) {
  return invalid("is a URL that is not fetched: " + std::move(why), {}, "url_not_allowed");
}
Status not_now() { return failure(Code::unavailable, "cannot be fetched now; try again later"); }

ipc::Fd memory_file(const char* name) { return ipc::Fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)); }

/// A file whose bytes come one after another, within the setup's bounds.
class FileOnItsWay {
 public:
  explicit FileOnItsWay(const UrlSetup& setup) : setup_(setup), file_(memory_file("troupe-file")) {}
  ~FileOnItsWay() {
    if (setup_.memory != nullptr) setup_.memory->used -= charged_;
  }
  FileOnItsWay(const FileOnItsWay&) = delete;
  FileOnItsWay& operator=(const FileOnItsWay&) = delete;

  Status take(std::string_view bytes) {
    if (bytes_ + bytes.size() > setup_.bytes)
      return invalid("is a URL whose file has more than " + std::to_string(setup_.bytes) + " bytes", {},
                     "url_failed");
    if (setup_.memory != nullptr) {
      charged_ += bytes.size();
      if (setup_.memory->used.fetch_add(bytes.size()) + bytes.size() > setup_.memory->most)
        return {Code::overloaded,
                "cannot be fetched now: the memory for files of images (--media-memory) is in use by other "
                "requests: try again later",
                {},
                "media_memory_full"};
    }
    if (pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(bytes_)) !=
        static_cast<ssize_t>(bytes.size()))
      return not_now();
    bytes_ += bytes.size();
    return {};
  }

  /// So that nobody can change it.
  Result<ipc::Fd> sealed() {
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    if (fcntl(file_.get(), F_ADD_SEALS, kSeals) != 0) return not_now();
    return std::move(file_);
  }

 private:
  const UrlSetup& setup_;
  ipc::Fd file_;
  std::uint64_t bytes_ = 0, charged_ = 0;
};

enum class Way : std::uint8_t { done, late, given_up };

/// What comes out of the pipe, until its other end closes.
Result<Way> receive(int pipe, FileOnItsWay& file, TimePoint end, const std::atomic<bool>& give_up) {
  std::array<char, 64 << 10> part{};
  for (;;) {
    if (give_up) return Way::given_up;
    const TimePoint now = Clock::now();
    if (now >= end) return Way::late;
    pollfd wait{pipe, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(kEndLook.count())) <= 0) continue;
    const ssize_t count = read(pipe, part.data(), part.size());
    if (count == 0) return Way::done;
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return not_now();
    }
    if (Status status = file.take({part.data(), static_cast<std::size_t>(count)}); !status.ok())
      return status;
  }
}

/// What a process says of its failure, as text for a client.
Status said(int fd) {
  std::string text(kMostSaid, '\0');
  const ssize_t count = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  text = utf8::to_valid(text);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) return not_now();
  std::string reason = text.substr(0, line), message = text.substr(line + 1);
  if (reason.empty()) return failure(Code::unavailable, std::move(message));
  return invalid(std::move(message), {}, std::move(reason));
}

/// The path that a URL spells, "%20" for a blank. Nothing where an escape is none, or stands for a zero.
std::optional<std::string> unescaped(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      out += path[i];
      continue;
    }
    const int byte = escaped_byte(path, i);
    if (byte <= 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

/// A file of the allowed directory: no link and no ".." leads out of it.
Result<ipc::Fd> read_file(const UrlSetup& setup, std::string_view spelled) {
  if (setup.directory.empty())
    return not_allowed(
        "files are read only where --allowed-media-path names a directory: send the bytes as a data: URL");
  const Status outside = not_allowed("it is no file below the directory of --allowed-media-path");
  const std::optional<std::string> whole = unescaped(spelled);
  if (!whole) return outside;
  const std::string_view path = *whole;
  std::string_view directory = setup.directory;
  while (directory.size() > 1 && directory.ends_with('/')) directory.remove_suffix(1);
  if (!path.starts_with(directory) || path.substr(directory.size()).find_first_not_of('/') == path.npos ||
      path.substr(directory.size()).front() != '/')
    return outside;
  const std::string_view below = path.substr(directory.size());
  const std::string relative(below.substr(below.find_first_not_of('/')));
  const ipc::Fd root(open(std::string(directory).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  open_how how{.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
               .mode = 0,
               .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
  const ipc::Fd file(static_cast<int>(syscall(SYS_openat2, root.get(), relative.c_str(), &how, sizeof how)));
  struct stat st {};
  if (!root || !file || fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode)) return outside;
  FileOnItsWay way(setup);
  off_t at = 0;
  std::array<char, 64 << 10> part{};
  for (ssize_t count; (count = pread(file.get(), part.data(), part.size(), at)) > 0; at += count) {
    if (Status status = way.take({part.data(), static_cast<std::size_t>(count)}); !status.ok()) return status;
  }
  return way.sealed();
}

}  // namespace

Result<ipc::Fd> fetch_url(const UrlSetup& setup, const std::string& url, const std::atomic<bool>& give_up) {
  if (url.size() > kMostUrlBytes || url.find_first_of("\r\n") != url.npos)
    return not_allowed("it is longer than " + std::to_string(kMostUrlBytes) + " bytes or has a line break");
  if (url.starts_with("file://")) return read_file(setup, std::string_view(url).substr(7));
  if (setup.hosts.empty())
    return not_allowed(
        "hosts are asked only where --allowed-media-domains names them: send the bytes as a data: URL");
  std::string wanted =
      std::to_string(setup.bytes) + "\n" + std::to_string(setup.time.count()) + "\n" + url + "\n";
  for (const std::string& host : setup.hosts) wanted += host + "\n";
  auto in = ipc::make_constant_file("troupe-url", wanted);
  const ipc::Fd say = memory_file("troupe-said");
  std::array<int, 2> ends{-1, -1};
  if (!in.ok() || !say || pipe2(ends.data(), O_CLOEXEC) != 0) return not_now();
  const ipc::Fd from(ends[0]);
  ipc::Fd to(ends[1]);
  auto child = supervisor::ChildProcess::start(
      setup.executable,
      {"fetch", "--in=" + std::to_string(in->get()), "--out=" + std::to_string(to.get()),
       "--say=" + std::to_string(say.get())},
      {in->get(), to.get(), say.get()},
      config::child_environment(config::ChildKind::fetch, config::process_environment()));
  if (!child.ok()) return not_now();
  to = {};
  FileOnItsWay file(setup);
  const TimePoint end = Clock::now() + setup.time + std::chrono::seconds(1);
  const auto way = receive(from.get(), file, end, give_up);
  const bool is_whole = way.ok() && *way == Way::done;
  if (!is_whole || !child->has_ended(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now())))
    child->kill(SIGKILL);
  const supervisor::ChildExit how = child->reap();
  if (!way.ok()) return way.status();
  if (*way == Way::given_up) return not_now();
  if (*way == Way::late)
    return invalid(
        "is a URL that cannot be fetched: it takes longer than " + std::to_string(setup.time.count()) + " ms",
        {}, "url_failed");
  if (how.signal != 0 || how.code > 1) return not_now();
  if (how.code == 1) return said(say.get());
  return file.sealed();
}

}  // namespace troupe
