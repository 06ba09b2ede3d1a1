#include "model/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace troupe::model {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status cannot(const char* what) {
  return failure(Code::internal,
                 std::string("a memory file cannot be ") + what + ": " + std::strerror(errno));
}

}  // namespace

Result<OwnedFd> make_sealed_memory(const char* name, std::size_t bytes) {
  OwnedFd file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return cannot("created");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return cannot("sized");
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return cannot("sealed");
  return file;
}

Result<SealedMemory> SealedMemory::make(const char* name, std::size_t bytes) {
  auto file = make_sealed_memory(name, bytes);
  if (!file) return file.status();
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file->get(), 0);
  if (data == MAP_FAILED) return cannot("mapped");
  SealedMemory made;
  made.file_ = std::move(*file);
  made.data_ = data;
  made.bytes_ = bytes;
  return made;
}

Result<SealedMemory> SealedMemory::open(int fd, std::size_t bytes) {
  struct stat found {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &found) != 0 ||
      static_cast<std::size_t>(found.st_size) < bytes) {
    return invalid("it is no sealed memory file of " + std::to_string(bytes) + " bytes");
  }
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return cannot("mapped");
  SealedMemory opened;
  opened.data_ = data;
  opened.bytes_ = bytes;
  return opened;
}

SealedMemory::~SealedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace troupe::model
