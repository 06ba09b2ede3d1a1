#include "http/batch/batch_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/file_writes.h"
#include "base/hex.h"
#include "config/json_file.h"

namespace troupe::http {
namespace {

constexpr std::size_t kSaltBytes = 32;

Status store_failure(const std::string& what) {
  return failure(Code::unavailable, "--batch-dir: " + what + ": " + std::strerror(errno));
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return store_failure(path + " cannot be made");
}

Status replace_text(const std::string& path, std::string_view text) {
  return replace_file(path, text) ? Status() : store_failure(path + " cannot be written");
}

std::string random_bytes(std::size_t count) {
  std::random_device random;
  std::string out;
  while (out.size() < count) out.push_back(static_cast<char>(random()));
  return out;
}

}  // namespace

std::string BatchStore::fresh_id(std::string_view prefix) {
  std::array<unsigned char, 12> bytes{};
  std::ranges::copy(random_bytes(bytes.size()), bytes.begin());
  return std::string(prefix) + to_hex(bytes);
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
  if (auto kept = config::read_small_file(path, kSaltBytes); kept && kept->size() == kSaltBytes) {
    salt_ = *std::move(kept);
    return {};
  }
  salt_ = random_bytes(kSaltBytes);
  return replace_text(path, salt_);
}

Status BatchStore::read() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/files", error)) {
    if (entry.path().extension() != ".json") continue;
    const auto text = config::read_small_file(entry.path());
    auto file = read_file_record(text ? std::string_view(*text) : std::string_view());
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
    const auto text = config::read_small_file(entry.path());
    auto batch = read_batch_record(text ? std::string_view(*text) : std::string_view());
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
  if (::access(path_of(file.id).c_str(), F_OK) != 0)
    return store_failure(path_of(file.id) + " cannot be found");
  if (Status status = replace_text(path_of(file.id) + ".json", file_record(file)); !status.ok())
    return status;
  StoredFile& known = files_[file.id];
  bytes_ += file.bytes - known.bytes;
  known = file;
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
  remember(batch);
  return {};
}

const Batch* BatchStore::batch(const std::string& id, const std::string& owner) const {
  const auto found = batches_.find(id);
  return found == batches_.end() || found->second.owner != owner ? nullptr : &found->second;
}

}  // namespace troupe::http
