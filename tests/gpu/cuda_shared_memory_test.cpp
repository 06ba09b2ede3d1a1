// Memory of a GPU that another process maps. The other process is this program again, with one disabled test.
// It uses the same GPU or, where there are two, the second one; TROUPE_TEST_OTHER_GPU names one that
// CUDA_VISIBLE_DEVICES hides from the test.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/spawn.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/reserved_memory.h"

extern char** environ;

namespace troupe {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;
constexpr const char* kSocket = "TROUPE_TEST_SOCKET";
constexpr const char* kOrdinal = "TROUPE_TEST_ORDINAL";
constexpr const char* kOtherGpu = "TROUPE_TEST_OTHER_GPU";
constexpr int kHidden = -1;

int number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

std::vector<std::uint32_t> words() {
  std::vector<std::uint32_t> out(kBytes / sizeof(std::uint32_t));
  std::iota(out.begin(), out.end(), 12345u);
  return out;
}

/// Room for one descriptor beside one byte.
struct Message {
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = room;
    header.msg_controllen = sizeof room;
  }
  char byte = 'm';
  iovec part{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

void send_descriptor(int socket, int fd) {
  Message message;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  ASSERT_EQ(::sendmsg(socket, &message.header, 0), 1);
}

OwnedFd receive_descriptor(int socket) {
  Message message;
  if (::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1) return {};
  int fd = -1;
  if (const cmsghdr* const rights = CMSG_FIRSTHDR(&message.header))
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return OwnedFd(fd);
}

TEST(CudaSharedMemory, DISABLED_Owner) {
  Cuda device({.ordinal = number(kOrdinal)});
  ReservedMemory memory(device, kBytes, ReservedMemory::Sharing::on);
  void* const address = memory.data();
  ASSERT_TRUE(memory.map(1) && memory.map(memory.granule() + 1));
  memory.unmap();
  EXPECT_EQ(memory.mapped(), 0u);
  ASSERT_TRUE(memory.map(kBytes));
  EXPECT_EQ(memory.data(), address);
  const std::vector<std::uint32_t> contents = words();
  device.upload(memory.data(), contents.data(), kBytes);
  device.sync();
  send_descriptor(number(kSocket), memory.share().get());
  for (;;) ::pause();
}

/// The other process, which has written words() to its memory.
class Owner {
 public:
  explicit Owner(int ordinal) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const OwnedFd ours(ends[0]);
    OwnedFd theirs(ends[1]);
    std::vector<std::string> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      const std::string_view word(*e);
      if (word.starts_with("GTEST_") || (ordinal == kHidden && word.starts_with("CUDA_VISIBLE_DEVICES=")))
        continue;
      environment.emplace_back(word);
    }
    if (ordinal == kHidden)
      environment.push_back("CUDA_VISIBLE_DEVICES=" + std::string(std::getenv(kOtherGpu)));
    environment.push_back(std::string(kOrdinal) + "=" + std::to_string(std::max(ordinal, 0)));
    environment.push_back(std::string(kSocket) + "=" + std::to_string(theirs.get()));
    auto started = spawn({.executable = "/proc/self/exe",
                          .arguments = {"owner", "--gtest_also_run_disabled_tests",
                                        "--gtest_filter=CudaSharedMemory.DISABLED_Owner"},
                          .environment = std::move(environment),
                          .keep = {theirs.get()},
                          .death_signal = SIGKILL});
    EXPECT_TRUE(started.ok()) << started.status().message;
    pid_ = started.ok() ? *started : 0;
    theirs.reset();
    memory = receive_descriptor(ours.get());
  }
  ~Owner() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }

  OwnedFd memory;

 private:
  pid_t pid_ = 0;
};

/// The parameter: ordinal of the GPU that has the memory, or kHidden.
class CudaSharedMemoryTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    if (GetParam() == kHidden && std::getenv(kOtherGpu) == nullptr)
      GTEST_SKIP() << kOtherGpu << " is not set";
    if (GetParam() >= cuda_devices()) GTEST_SKIP() << "there is one GPU";
    if (GetParam() > 0 && !cuda_reaches(0, GetParam())) GTEST_SKIP() << "the GPUs do not reach each other";
    device = std::make_unique<Cuda>();
  }
  /// What copies on a stream of their own read there.
  std::vector<std::uint32_t> copied(const ImportedMemory& from) {
    auto* const to = static_cast<std::byte*>(device->alloc(kBytes));
    CudaCopyStream stream(*device);
    for (std::size_t at = 0; at < kBytes; at += kBytes / 8)
      stream.copy(to + at, from.data() + at, kBytes / 8);
    stream.sync();
    std::vector<std::uint32_t> out(kBytes / sizeof(std::uint32_t));
    device->download(out.data(), to, kBytes);
    device->sync();
    device->free(to);
    return out;
  }

  std::unique_ptr<Cuda> device;
};

TEST_P(CudaSharedMemoryTest, IsReadByAnotherProcessAlsoWhenItsOwnerWasKilled) {
  Owner owner(GetParam());
  ASSERT_TRUE(owner.memory.valid());
  auto opened = ImportedMemory::open(*device, owner.memory.get(), kBytes);
  ASSERT_TRUE(opened.ok()) << opened.status().message;
  owner.memory.reset();
  EXPECT_TRUE(copied(*opened) == words());
  owner.kill();
  EXPECT_TRUE(copied(*opened) == words());
}

TEST_P(CudaSharedMemoryTest, IsFreedWhenTheLastMappingEnds) {
  if (GetParam() != 0) GTEST_SKIP() << "what is free on the other GPU is not known here";
  Owner owner(GetParam());
  ASSERT_TRUE(owner.memory.valid());
  std::optional<Result<ImportedMemory>> opened(ImportedMemory::open(*device, owner.memory.get(), kBytes));
  ASSERT_TRUE(opened->ok()) << opened->status().message;
  owner.memory.reset();
  owner.kill();
  const std::size_t before = device->memory().free;
  opened.reset();
  EXPECT_GE(device->memory().free, before + kBytes);
}

TEST_P(CudaSharedMemoryTest, WhatIsNotWholeIsRefused) {
  Owner owner(GetParam());
  ASSERT_TRUE(owner.memory.valid());
  const auto opened = ImportedMemory::open(*device, owner.memory.get(), 4 * kBytes);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code, Code::unavailable);
  EXPECT_NE(opened.status().message.find("cannot read the memory of the other one's GPU"), std::string::npos);
  const auto again = ImportedMemory::open(*device, owner.memory.get(), kBytes);
  ASSERT_TRUE(again.ok()) << again.status().message;
  EXPECT_TRUE(copied(*again) == words());
}

INSTANTIATE_TEST_SUITE_P(OnEveryGpu, CudaSharedMemoryTest, ::testing::Values(0, 1, kHidden),
                         [](const auto& info) {
                           return info.param == kHidden ? std::string("hidden")
                                                        : "of_gpu_" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace troupe
