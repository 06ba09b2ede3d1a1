#include "http/batch/batch_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace troupe::http {
namespace {

constexpr std::size_t kSaltBytes = 32;

Status store_failure(const std::string& what) {
  return failure(Code::unavailable, "--batch-dir: " + what + ": " + std::strerror(errno));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return store_failure(path + " cannot be made");
}

/// Directory entries are on the disk as well.
void sync_directory(const std::string& path) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

/// Writes `text` to `path` by way of a file beside it: after a death there is the old text or this.
Status replace_text(const std::string& path, std::string_view text) {
  const std::string beside = path + ".new";
  const OwnedFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return store_failure(path + " cannot be written");
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return store_failure(path + " cannot be written");
    written += static_cast<std::size_t>(n);
  }
  if (::fsync(fd.get()) != 0 || ::rename(beside.c_str(), path.c_str()) != 0)
    return store_failure(path + " cannot be written");
  sync_directory(std::filesystem::path(path).parent_path().string());
  return {};
}

std::string random_bytes(std::size_t count) {
  std::random_device random;
  std::string out;
  while (out.size() < count) out.push_back(static_cast<char>(random()));
  return out;
}

}  // namespace

std::string BatchStore::fresh_id(std::string_view prefix) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id(prefix);
  for (const char byte : random_bytes(12)) {
    id.push_back(kHex[static_cast<unsigned char>(byte) >> 4]);
    id.push_back(kHex[static_cast<unsigned char>(byte) & 15]);
  }
  return id;
}

Status BatchStore::check(const std::string& directory) {
  if (Status status = make_directory(directory); !status.ok()) return status;
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0) return store_failure(directory + " cannot be read");
  if ((found.st_mode & 077) != 0 || found.st_uid != ::geteuid()) {
    return invalid("--batch-dir: " + directory +
                       " is open to others; it must belong to the server's user, with mode 0700",
                   "batch-dir");
  }
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0)
    return store_failure(directory + " cannot be written");
  return {};
}

Status BatchStore::prepare(const std::string& directory, int patience_s) {
  directory_ = directory;
  if (Status status = check(directory); !status.ok()) return status;
  lock_.reset(::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_) return store_failure(directory + " cannot be written");
  const TimePoint end = Clock::now() + std::chrono::seconds(patience_s);
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    return failure(Code::unavailable, "--batch-dir: " + directory + " is used by another server");
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory + "/uploads", ignored);
  for (const char* part : {"/files", "/batches", "/uploads"}) {
    if (Status status = make_directory(directory + part); !status.ok()) return status;
  }
  return read_salt();
}

Status BatchStore::read_salt() {
  const std::string path = directory_ + "/salt";
  salt_ = read_text(path);
  if (salt_.size() == kSaltBytes) return {};
  salt_ = random_bytes(kSaltBytes);
  return replace_text(path, salt_);
}

Status BatchStore::read() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/files", error)) {
    if (entry.path().extension() != ".json") continue;
    auto file = read_file_record(read_text(entry.path().string()));
    if (!file || file->id != entry.path().stem()) {
      ++unreadable_;
      continue;
    }
    bytes_ += file->bytes;
    files_.emplace(file->id, *std::move(file));
  }
  if (error) return failure(Code::unavailable, "--batch-dir: " + error.message());
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/batches", error)) {
    if (entry.path().extension() != ".json") continue;
    auto batch = read_batch_record(read_text(entry.path().string()));
    if (!batch || batch->id != entry.path().stem()) {
      ++unreadable_;
      continue;
    }
    batches_.emplace(batch->id, *std::move(batch));
  }
  if (error) return failure(Code::unavailable, "--batch-dir: " + error.message());
  return {};
}

Result<BatchStore> BatchStore::open(const std::string& directory, std::int64_t most_bytes, int patience_s) {
  BatchStore store;
  store.most_bytes_ = static_cast<std::uint64_t>(most_bytes);
  if (Status status = store.prepare(directory, patience_s); !status.ok()) return status;
  if (Status status = store.read(); !status.ok()) return status;
  return store;
}

std::string BatchStore::upload_path() const { return directory_ + "/uploads/" + fresh_id({}); }

Status BatchStore::check_room(std::uint64_t bytes) const {
  if (bytes <= most_bytes_ && bytes_ <= most_bytes_ - bytes) return {};
  return {Code::too_large,
          "The files have " + std::to_string(bytes_) + " bytes and this one " + std::to_string(bytes) +
              "; all together may have " + std::to_string(most_bytes_) + " (--batch-dir-bytes): delete some",
          "file", "storage_full"};
}

Result<StoredFile> BatchStore::add(StoredFile file, const std::string& path) {
  if (Status status = check_room(file.bytes); !status.ok()) return status;
  file.id = fresh_id("file-");
  if (::rename(path.c_str(), path_of(file.id).c_str()) != 0) return store_failure("a file cannot be kept");
  if (Status status = adopt(file); !status.ok()) {
    ::unlink(path_of(file.id).c_str());
    return status;
  }
  return file;
}

Status BatchStore::adopt(const StoredFile& file) {
  if (Status status = replace_text(path_of(file.id) + ".json", file_record(file)); !status.ok())
    return status;
  if (const auto [known, is_new] = files_.insert_or_assign(file.id, file); is_new) bytes_ += file.bytes;
  return {};
}

void BatchStore::remove(const std::string& file_id) {
  const std::string path = path_of(file_id);
  ::unlink((path + ".json").c_str());
  ::unlink(path.c_str());
  sync_directory(directory_ + "/files");
  const auto found = files_.find(file_id);
  if (found == files_.end()) return;
  bytes_ -= found->second.bytes;
  files_.erase(found);
}

const StoredFile* BatchStore::file(const std::string& id, const std::string& owner) const {
  const auto found = files_.find(id);
  return found == files_.end() || found->second.owner != owner ? nullptr : &found->second;
}

Status BatchStore::put(const Batch& batch) {
  const std::string path = directory_ + "/batches/" + batch.id + ".json";
  if (Status status = replace_text(path, batch_record(batch)); !status.ok()) return status;
  batches_.insert_or_assign(batch.id, batch);
  return {};
}

const Batch* BatchStore::batch(const std::string& id, const std::string& owner) const {
  const auto found = batches_.find(id);
  return found == batches_.end() || found->second.owner != owner ? nullptr : &found->second;
}

}  // namespace troupe::http
