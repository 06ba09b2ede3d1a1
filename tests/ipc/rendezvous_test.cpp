#include "ipc/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::ipc {
namespace {

using namespace std::chrono_literals;

class RendezvousTest : public ::testing::Test {
 protected:
  int files() const {
    int n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir_)) ++n;
    return n;
  }

  // Starts a process that takes a port and then waits. Returns its pid when it has the port.
  pid_t owner_of(PortKind kind, int port) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      auto lock = PortLock::acquire(dir_, kind, port);
      if (!lock.ok() || write(ready[1], "x", 1) != 1) _exit(1);
      pause();
      _exit(0);
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
  }
  static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }

  const troupe::test::TempDirectory directory_;
  const std::string base_ = directory_.path().string();
  const std::string dir_ = base_ + "/troupe";
};

TEST_F(RendezvousTest, ALockIsTwoPrivateFilesRemovedAtTheEnd) {
  {
    auto lock = PortLock::acquire(dir_, PortKind::engine_worker_queue, 8002);
    ASSERT_TRUE(lock.ok()) << lock.status().message;
    struct stat st {};
    ASSERT_EQ(stat(dir_.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
    ASSERT_EQ(stat((dir_ + "/engine-worker-queue-8002.lock").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 01600u) << "the sticky bit keeps cleaners of temporary files away";
    ASSERT_EQ(stat((dir_ + "/engine-worker-queue-8002.sock").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 01600u);
    EXPECT_TRUE(S_ISSOCK(st.st_mode));
    std::ifstream text(dir_ + "/engine-worker-queue-8002.lock");
    int pid = 0;
    text >> pid;
    EXPECT_EQ(pid, getpid());
    EXPECT_FALSE(lock->taken_over());
    PortLock moved = std::move(*lock);
    EXPECT_EQ(files(), 2);
    lock->release();
    EXPECT_EQ(files(), 2);
  }
  EXPECT_EQ(files(), 0);
}

TEST_F(RendezvousTest, ATakenPortNamesPortFlagAndPid) {
  const pid_t owner = owner_of(PortKind::cache_queue, 8003);
  auto lock = PortLock::acquire(dir_, PortKind::cache_queue, 8003);
  ASSERT_FALSE(lock.ok());
  EXPECT_EQ(lock.status().code, Code::unavailable);
  const std::string& message = lock.status().message;
  EXPECT_NE(message.find("8003"), std::string::npos) << message;
  EXPECT_NE(message.find("--cache-queue-port"), std::string::npos) << message;
  EXPECT_NE(message.find("pid " + std::to_string(owner)), std::string::npos) << message;
  EXPECT_EQ(files(), 2);  // the owner's files are untouched
  // The same number with another PortKind is another port.
  EXPECT_TRUE(PortLock::acquire(dir_, PortKind::engine_worker_queue, 8003).ok());
  end(owner);
}

TEST_F(RendezvousTest, ADeadOwnersLockIsTakenOver) {
  const pid_t owner = owner_of(PortKind::http, 8180);
  end(owner);
  EXPECT_EQ(files(), 2);  // kill -9 left them behind
  EXPECT_TRUE(live_owners(dir_, PortKind::http).empty());
  auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
  ASSERT_TRUE(lock.ok()) << lock.status().message;
  EXPECT_TRUE(lock->taken_over());
  const auto owners = live_owners(dir_, PortKind::http);
  ASSERT_EQ(owners.size(), 1u);
  EXPECT_EQ(owners[0].port, 8180);
  EXPECT_EQ(owners[0].pid, getpid());
  EXPECT_TRUE(connect_port(dir_, PortKind::http, 8180, Clock::now() + test::kPatience).ok());
}

TEST_F(RendezvousTest, LiveOwnersAreListedByPort) {
  const pid_t second = owner_of(PortKind::http, 9002);
  const pid_t first = owner_of(PortKind::http, 9001);
  const pid_t other = owner_of(PortKind::metrics, 9003);
  std::ofstream(dir_ + "/http-junk.lock") << "1";
  const auto owners = live_owners(dir_, PortKind::http);
  ASSERT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[0].port, 9001);
  EXPECT_EQ(owners[0].pid, first);
  EXPECT_EQ(owners[1].pid, second);
  end(first);
  end(second);
  end(other);
  EXPECT_TRUE(live_owners(base_ + "/absent", PortKind::http).empty());
}

// kill -9 leaves files; the next instance, on whatever ports, removes them all and nothing else.
TEST_F(RendezvousTest, FilesOfDeadOwnersAreRemovedAndThoseOfLivingOnesStay) {
  const pid_t dead = owner_of(PortKind::http, 20'101);
  end(dead);
  end(owner_of(PortKind::metrics, 20'102));
  end(owner_of(PortKind::cache_queue, 20'103));
  const pid_t living = owner_of(PortKind::engine_worker_queue, 20'104);
  std::ofstream(dir_ + "/http-20105.lock")
      << living << "\n";                           // a dead owner, whose pid is another process's now
  std::ofstream(dir_ + "/http-20106.sock") << "";  // of which the lock was removed
  std::ofstream(dir_ + "/http-junk.lock") << "1";
  std::ofstream(dir_ + "/notes") << "mine";
  EXPECT_EQ(files(), 12);
  remove_left_files(dir_);
  EXPECT_EQ(files(), 4);
  for (const char* name :
       {"engine-worker-queue-20104.lock", "engine-worker-queue-20104.sock", "http-junk.lock", "notes"}) {
    EXPECT_TRUE(std::filesystem::exists(dir_ + "/" + name)) << name;
  }
  EXPECT_TRUE(connect_port(dir_, PortKind::engine_worker_queue, 20'104, Clock::now() + test::kPatience).ok());
  end(living);
  remove_left_files(dir_);
  EXPECT_EQ(files(), 2);
  remove_left_files(base_ + "/absent");
}

TEST_F(RendezvousTest, FilesOfAPortThatIsStillHeldStay) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(socket.get(), 1), 0);
  ASSERT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  end(owner_of(PortKind::http, port));
  remove_left_files(dir_);
  EXPECT_EQ(files(), 2) << "the next owner learns from them that it has to wait for the port";
  const auto lock = PortLock::acquire(dir_, PortKind::http, port);
  ASSERT_TRUE(lock.ok());
  EXPECT_TRUE(lock->taken_over());
}

// One that removes left files holds a lock for a moment; who takes the port meanwhile is not refused.
TEST_F(RendezvousTest, RemovingLeftFilesKeepsNobodyFromAPort) {
  ASSERT_TRUE(prepare_runtime_dir(dir_).ok());
  std::atomic<bool> stop{false};
  std::thread remover([&] {
    while (!stop) remove_left_files(dir_);
  });
  const pid_t dead = owner_of(PortKind::cache_queue, 20'200);
  end(dead);
  for (int round = 0; round < 500; ++round) {
    std::ofstream(dir_ + "/cache-queue-20201.lock") << dead << "\n";
    const auto lock = PortLock::acquire(dir_, PortKind::cache_queue, 20'201);
    EXPECT_TRUE(lock.ok()) << "round " << round << ": " << lock.status().message;
    if (!lock.ok()) break;
    const auto owners = live_owners(dir_, PortKind::cache_queue);
    EXPECT_EQ(owners.size(), 1u) << "round " << round << ": the lock is on the file that has the name";
  }
  stop = true;
  remover.join();
}

// A process that lists the owners must not appear in the list.
TEST_F(RendezvousTest, QueryingAFreePortDoesNotTakeIt) {
  ASSERT_TRUE(prepare_runtime_dir(dir_).ok());
  std::atomic<bool> stop{false};
  std::thread looker([&] {
    while (!stop) (void)live_owners(dir_, PortKind::http);
  });
  for (int round = 0; round < 500; ++round) {
    std::ofstream(dir_ + "/http-8180.lock") << "1\n";  // a dead owner's
    std::this_thread::yield();
    const auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
    EXPECT_TRUE(lock.ok()) << "round " << round << ": " << lock.status().message;
    if (!lock.ok()) break;
  }
  stop = true;
  looker.join();
}

TEST_F(RendezvousTest, AForkedChildDoesNotRemoveTheFiles) {
  auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
  ASSERT_TRUE(lock.ok());
  const pid_t pid = fork();
  if (pid == 0) {
    lock->release();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(files(), 2);
}

// Eight processes take one port at once, each of them many times; at most one of them has it at any time.
TEST_F(RendezvousTest, OneOwnerAtATime) {
  constexpr int kProcesses = 8, kTurns = 25;
  ASSERT_TRUE(prepare_runtime_dir(dir_).ok());
  auto* inside = static_cast<std::atomic<int>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto* taken = inside + 1;
  auto* refused = inside + 2;
  auto* started = inside + 3;
  const TimePoint end = Clock::now() + troupe::test::kPatience;
  std::vector<pid_t> pids;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      started->fetch_add(1);
      while (started->load() < kProcesses && Clock::now() < end) std::this_thread::yield();
      for (int turn = 0; turn < kTurns;) {
        auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
        if (!lock.ok()) {
          if (lock.status().code != Code::unavailable) _exit(2);
          if (Clock::now() > end) _exit(4);
          refused->fetch_add(1);
          std::this_thread::yield();
          continue;
        }
        if (inside->fetch_add(1) != 0) _exit(3);
        taken->fetch_add(1);
        usleep(50);
        inside->fetch_sub(1);
        ++turn;
      }
      _exit(0);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(taken->load(), kProcesses * kTurns);
  EXPECT_GT(refused->load(), 0) << "no two processes met";
  EXPECT_EQ(files(), 0);
  munmap(inside, 4096);
}

// A stopped owner accepts no connection, and connections that were given up stay in its backlog.
TEST_F(RendezvousTest, ConnectingToAnOwnerThatDoesNotAcceptTimesOut) {
  auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
  ASSERT_TRUE(lock.ok());
  const pid_t pid = fork();
  if (pid == 0) {
    int waiting = 0;
    while (connect_port(dir_, PortKind::http, 8180, Clock::now() + 20ms).ok()) ++waiting;
    const auto last = connect_port(dir_, PortKind::http, 8180, Clock::now() + 20ms);
    _exit(waiting > 0 && last.status().code == Code::timeout ? 0 : 1);
  }
  int status = -1;
  for (const TimePoint end = Clock::now() + test::kPatience;
       waitpid(pid, &status, WNOHANG) != pid && Clock::now() < end;) {
    usleep(1000);
  }
  if (status == -1) end(pid);
  EXPECT_EQ(status, 0);
}

TEST_F(RendezvousTest, AClientReachesTheOwnerAndOnlyOnce) {
  auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
  ASSERT_TRUE(lock.ok());
  EXPECT_FALSE(lock->accept_peer().valid());  // no peer has connected
  const auto client = connect_port(dir_, PortKind::http, 8180, Clock::now() + test::kPatience);
  ASSERT_TRUE(client.ok()) << client.status().message;
  const Fd peer = lock->accept_peer();
  ASSERT_TRUE(peer.valid());
  EXPECT_FALSE(lock->accept_peer().valid());
  ASSERT_EQ(write(peer.get(), "x", 1), 1);
  char got = 0;
  EXPECT_EQ(::read(client->get(), &got, 1), 1);
  EXPECT_EQ(got, 'x');
}

TEST_F(RendezvousTest, ADirectoryThatIsNotPrivateIsRefused) {
  ASSERT_EQ(mkdir(dir_.c_str(), 0755), 0);
  const auto lock = PortLock::acquire(dir_, PortKind::http, 8180);
  ASSERT_FALSE(lock.ok());
  EXPECT_NE(lock.status().message.find("0700"), std::string::npos);
  const std::string link = base_ + "/link";
  ASSERT_EQ(symlink("/tmp", link.c_str()), 0);
  EXPECT_FALSE(prepare_runtime_dir(link).ok());
  std::ofstream(base_ + "/file") << "x";
  EXPECT_FALSE(prepare_runtime_dir(base_ + "/file").ok());
  EXPECT_FALSE(prepare_runtime_dir(base_ + "/file/below").ok());
}

TEST_F(RendezvousTest, ImpossiblePortsAndPathsAreErrors) {
  EXPECT_FALSE(PortLock::acquire(dir_, PortKind::http, 0).ok());
  EXPECT_FALSE(PortLock::acquire(dir_, PortKind::http, 70000).ok());
  EXPECT_EQ(connect_port(dir_, PortKind::http, 8180, Clock::now() + test::kPatience).status().code,
            Code::not_found);
  const auto deep = PortLock::acquire(base_ + "/" + std::string(120, 'd'), PortKind::http, 8180);
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.status().message.find("shorter"), std::string::npos) << deep.status().message;
}

}  // namespace
}  // namespace troupe::ipc
