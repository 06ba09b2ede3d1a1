#include "ipc/rendezvous.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>

#include "ipc/system_failure.h"

namespace troupe::ipc {

namespace {

std::string stem_of(const std::string& dir, PortKind kind, int port) {
  return dir + "/" + name_of(kind) + "-" + std::to_string(port);
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid("the socket path " + path + " is longer than the " +
                   std::to_string(sizeof address.sun_path - 1) +
                   " bytes that a unix socket allows; choose a shorter runtime directory");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// The pid that the owner wrote; 0 before it has.
int read_pid(int fd) {
  std::array<char, 16> text{};
  const ssize_t n = pread(fd, text.data(), text.size() - 1, 0);
  int pid = 0;
  if (n > 0) std::from_chars(text.data(), text.data() + n, pid);
  return pid;
}

// An exclusive lock on the whole file. It belongs to the open file, not the process, and ends with the last
// descriptor. Unlike flock(), F_OFD_GETLK can query it without taking it.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// How long a lock is tried for whose holder is not the process that the file names: one that removes left
// files holds it for a moment.
constexpr Duration kMomentaryHold = std::chrono::milliseconds(200);

bool is_alive(int pid) { return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH); }

// Opens the lock file and takes the lock. An unset Fd when a live process holds it; `owner` is its pid.
Result<Fd> lock_file(const std::string& path, int& owner) {
  const TimePoint end = Clock::now() + kMomentaryHold;
  for (;;) {
    Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return system_failure("the lock file " + path + " cannot be opened");
    struct flock lock = whole_file();
    if (fcntl(fd.get(), F_OFD_SETLK, &lock) != 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EACCES)
        return system_failure("the lock file " + path + " cannot be locked");
      owner = read_pid(fd.get());
      if (is_alive(owner) || Clock::now() > end) return Fd();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    // The previous owner may have removed the file between our open and our lock. Then the lock is on a file
    // without a name, and we try again.
    struct stat ours {
    }, named{};
    if (fstat(fd.get(), &ours) == 0 && stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
        ours.st_dev == named.st_dev) {
      return fd;
    }
  }
}

/// Kind and port that a file's name stands for, "http-8180.lock" or "http-8180.sock".
struct PortName {
  PortKind kind;
  int port;
};
std::optional<PortName> port_named(std::string_view name) {
  if (!name.ends_with(".lock") && !name.ends_with(".sock")) return std::nullopt;
  name.remove_suffix(std::strlen(".lock"));
  for (const PortKind kind :
       {PortKind::http, PortKind::metrics, PortKind::engine_worker_queue, PortKind::cache_queue}) {
    const std::string prefix = std::string(name_of(kind)) + "-";
    if (!name.starts_with(prefix)) continue;
    const std::string_view digits = name.substr(prefix.size());
    int port = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    const bool whole = read.ec == std::errc() && read.ptr == digits.data() + digits.size();
    if (whole && std::to_string(port) == digits && port >= 1 && port <= 65535) return PortName{kind, port};
  }
  return std::nullopt;
}

/// True when a TCP socket has the port, at any address of the machine.
bool is_bound(int port) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<std::uint16_t>(port));
  return socket && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
         bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 && errno == EADDRINUSE;
}

// The sticky bit tells cleaners of temporary directories to keep a file however old it is (the rule for
// XDG_RUNTIME_DIR). Without its lock file a server that has run for weeks could not be found.
constexpr mode_t kFileMode = S_ISVTX | 0600;

Result<Fd> listen_at(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.status();
  unlink(path.c_str());  // left by a dead owner; we hold the lock
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket || bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      chmod(path.c_str(), kFileMode) != 0 || listen(socket.get(), 16) != 0) {
    return system_failure("the socket " + path + " cannot be opened");
  }
  return socket;
}

}  // namespace

const char* name_of(PortKind kind) {
  switch (kind) {
    case PortKind::http: return "http";
    case PortKind::metrics: return "metrics";
    case PortKind::engine_worker_queue: return "engine-worker-queue";
    case PortKind::cache_queue: return "cache-queue";
  }
  return "";
}

const char* flag_of(PortKind kind) {
  switch (kind) {
    case PortKind::http: return "--port";
    case PortKind::metrics: return "--metrics-port";
    case PortKind::engine_worker_queue: return "--engine-worker-queue-port";
    case PortKind::cache_queue: return "--cache-queue-port";
  }
  return "";
}

Status prepare_runtime_dir(const std::string& runtime_dir) {
  std::error_code error;
  const auto parent = std::filesystem::path(runtime_dir).lexically_normal();
  // Parents that are created here get mode 0700 too.
  const mode_t old_mask = umask(0077);
  std::filesystem::create_directories(parent, error);
  umask(old_mask);
  struct stat st {};
  if (error || lstat(runtime_dir.c_str(), &st) != 0) {
    return failure(Code::internal, "the runtime directory " + runtime_dir + " cannot be made: " +
                                       (error ? error.message() : std::strerror(errno)));
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 0077) != 0) {
    return invalid("the runtime directory " + runtime_dir +
                   " must be a directory that belongs to this user and is closed to others (mode 0700)");
  }
  return {};
}

Result<PortLock> PortLock::acquire(const std::string& runtime_dir, PortKind kind, int port) {
  if (port < 1 || port > 65535) {
    return invalid(std::string(flag_of(kind)) + " is " + std::to_string(port) + "; it must lie in 1 … 65535");
  }
  if (Status ready = prepare_runtime_dir(runtime_dir); !ready.ok()) return ready;
  PortLock lock;
  lock.kind_ = kind;
  lock.port_ = port;
  lock.stem_ = stem_of(runtime_dir, kind, port);

  int owner = 0;
  auto file = lock_file(lock.stem_ + ".lock", owner);
  if (!file) return file.status();
  if (!file->valid()) {
    return failure(Code::unavailable, "port " + std::to_string(port) + " (" + flag_of(kind) +
                                          ") is held by the running instance with pid " +
                                          std::to_string(owner) + "; stop it or choose another port");
  }
  lock.lock_ = std::move(*file);
  lock.taken_over_ = read_pid(lock.lock_.get()) != 0;
  lock.owner_pid_ = getpid();
  const std::string pid = std::to_string(lock.owner_pid_) + "\n";
  if (fchmod(lock.lock_.get(), kFileMode) != 0 || ftruncate(lock.lock_.get(), 0) != 0 ||
      pwrite(lock.lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return system_failure("the lock file " + lock.stem_ + ".lock cannot be written");
  }
  auto socket = listen_at(lock.stem_ + ".sock");
  if (!socket) return socket.status();
  lock.socket_ = std::move(*socket);
  return lock;
}

PortLock::PortLock(PortLock&& other) noexcept { *this = std::move(other); }

PortLock& PortLock::operator=(PortLock&& other) noexcept {
  if (this == &other) return *this;
  release();
  kind_ = other.kind_;
  port_ = other.port_;
  owner_pid_ = std::exchange(other.owner_pid_, 0);
  taken_over_ = other.taken_over_;
  stem_ = std::move(other.stem_);
  lock_ = std::move(other.lock_);
  socket_ = std::move(other.socket_);
  return *this;
}

void PortLock::release() {
  // A fork shares the lock; only the owner may remove the files. Files first, while the lock is held.
  if (lock_ && owner_pid_ == getpid()) {
    unlink((stem_ + ".sock").c_str());
    unlink((stem_ + ".lock").c_str());
  }
  socket_.reset();
  lock_.reset();
  owner_pid_ = 0;
}

Fd PortLock::accept_peer() const {
  Fd peer(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (peer && !check_same_user(peer.get()).ok()) peer.reset();
  return peer;
}

void remove_left_files(const std::string& runtime_dir) {
  std::error_code error;
  std::vector<PortName> named;
  for (std::filesystem::directory_iterator it(runtime_dir, error), end; !error && it != end;
       it.increment(error)) {
    if (const auto name = port_named(it->path().filename().string())) named.push_back(*name);
  }
  for (const PortName& name : named) {
    const bool tcp = name.kind == PortKind::http || name.kind == PortKind::metrics;
    if (tcp && is_bound(name.port)) continue;
    const std::string stem = stem_of(runtime_dir, name.kind, name.port);
    const Fd lock(open((stem + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct flock whole = whole_file();
    struct stat ours {
    }, there{};
    if (!lock || fcntl(lock.get(), F_OFD_SETLK, &whole) != 0) continue;  // its owner is alive
    if (fstat(lock.get(), &ours) != 0 || stat((stem + ".lock").c_str(), &there) != 0 ||
        ours.st_ino != there.st_ino || ours.st_dev != there.st_dev) {
      continue;  // it was removed meanwhile, and may be another's by now
    }
    unlink((stem + ".sock").c_str());
    unlink((stem + ".lock").c_str());
  }
}

std::vector<PortOwner> live_owners(const std::string& runtime_dir, PortKind kind) {
  std::vector<PortOwner> owners;
  const std::string prefix = std::string(name_of(kind)) + "-";
  constexpr std::string_view kSuffix = ".lock";
  std::error_code error;
  for (std::filesystem::directory_iterator it(runtime_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    PortOwner owner;
    const char* digits = name.data() + prefix.size();
    const char* digits_end = name.data() + name.size() - kSuffix.size();
    if (std::from_chars(digits, digits_end, owner.port).ptr != digits_end || digits == digits_end) continue;
    const Fd fd(open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct flock lock = whole_file();
    if (!fd || fcntl(fd.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
      continue;  // nobody holds it
    owner.pid = read_pid(fd.get());
    // remove_left_files() holds the lock of a dead owner's file, or of an empty one, for a moment.
    if (owner.pid <= 0 || (kill(owner.pid, 0) != 0 && errno == ESRCH)) continue;
    owners.push_back(owner);
  }
  std::sort(owners.begin(), owners.end(),
            [](const PortOwner& a, const PortOwner& b) { return a.port < b.port; });
  return owners;
}

Result<Fd> connect_port(const std::string& runtime_dir, PortKind kind, int port, TimePoint deadline) {
  const std::string path = stem_of(runtime_dir, kind, port) + ".sock";
  const auto address = address_of(path);
  if (!address) return address.status();
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return system_failure("no socket can be opened");
  // If the owner is stopped its accept queue fills up, and connect() then waits for space.
  const auto left = std::chrono::ceil<std::chrono::microseconds>(deadline - Clock::now()).count();
  const timeval patience{static_cast<time_t>(std::max<std::int64_t>(left, 1) / 1'000'000),
                         static_cast<suseconds_t>(std::max<std::int64_t>(left, 1) % 1'000'000)};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (errno == EAGAIN) {
      return failure(Code::timeout, "the owner of port " + std::to_string(port) + " (" + flag_of(kind) +
                                        ") did not accept a connection in time");
    }
    return failure(Code::not_found, "no running instance answers for port " + std::to_string(port) + " (" +
                                        flag_of(kind) + ")");
  }
  if (Status same = check_same_user(socket.get()); !same.ok()) return same;
  return socket;
}

Status check_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return system_failure("the peer of a socket cannot be asked for");
  }
  if (peer.uid != geteuid()) {
    return failure(Code::unauthorized, "the peer of the socket runs as user " + std::to_string(peer.uid));
  }
  return {};
}

}  // namespace troupe::ipc
