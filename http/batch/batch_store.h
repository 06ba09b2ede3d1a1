#pragma once
// The directory of --batch-dir: files that clients have sent, results, and the states of batches. Every state
// is written beside the old one and renamed, so a death at any instruction leaves the old one or the new one.
//
//   DIR/lock            held by the one server that uses the directory
//   DIR/salt            of the names of API keys
//   DIR/files/ID        bytes of a file; DIR/files/ID.json what is known of it; without that it does not
//   exist DIR/batches/ID.json a batch DIR/uploads/…       files that are being received; removed when the
//   directory is opened
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/owned_fd.h"
#include "base/status.h"
#include "http/batch/batch_objects.h"

namespace troupe::http {

/// Used by one thread, but for the functions that say otherwise.
class BatchStore {
 public:
  /// Creates the directory (mode 0700) where there is none, locks it and reads what is there. Not ok: it
  /// cannot be used, others may read it, or another server holds it. Records that cannot be read are left
  /// alone and counted in unreadable(). `most_bytes`: of all files together.
  /// A server that has just ended may hold the lock a moment longer: it is waited for so many seconds.
  static Result<BatchStore> open(const std::string& directory, std::int64_t most_bytes, int patience_s = 10);
  /// Not ok: open() would fail for another reason than the lock. Makes the directory where there is none.
  static Status check(const std::string& directory);

  /// 32 random bytes that stay the same for this directory. Any thread.
  const std::string& salt() const { return salt_; }
  std::size_t unreadable() const { return unreadable_; }

  /// A new path in the directory for a file that is being received. Any thread.
  std::string upload_path() const;
  /// Where the bytes of a file are. Any thread.
  std::string path_of(const std::string& file_id) const { return directory_ + "/files/" + file_id; }

  /// Not ok (too_large) when so many more bytes would be beyond the directory's limit.
  Status check_room(std::uint64_t bytes) const;

  /// Takes a file that lies at `path`, a path of upload_path(), written to the disk. Fills in id.
  Result<StoredFile> add(StoredFile file, const std::string& path);
  /// Makes a file of the bytes that lie at path_of(file.id) already. Not ok: they do not, or it cannot be
  /// kept.
  Status adopt(const StoredFile& file);
  /// Removes a file, or the bytes of one that adopt() was not called for.
  void remove(const std::string& file_id);
  /// Null when there is none of this owner.
  const StoredFile* file(const std::string& id, const std::string& owner) const;
  const std::map<std::string, StoredFile>& files() const { return files_; }

  /// Adds a batch, or replaces the one of its id. Not ok: the former stays.
  Status put(const Batch& batch);
  /// The same in memory alone: the disk keeps the former, with which the next server begins.
  void remember(const Batch& batch) { batches_.insert_or_assign(batch.id, batch); }
  const Batch* batch(const std::string& id, const std::string& owner) const;
  const std::map<std::string, Batch>& batches() const { return batches_; }

  /// `prefix` and 24 random hexadecimal digits. Any thread.
  static std::string fresh_id(std::string_view prefix);

 private:
  BatchStore() = default;
  Status prepare(const std::string& directory, int patience_s);
  Status read();
  Status read_salt();

  std::string directory_;
  std::uint64_t most_bytes_ = 0;
  OwnedFd lock_;
  std::string salt_;
  std::size_t unreadable_ = 0;
  std::uint64_t bytes_ = 0;  ///< of all files
  std::map<std::string, StoredFile> files_;
  std::map<std::string, Batch> batches_;
};

}  // namespace troupe::http
