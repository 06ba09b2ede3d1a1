// What a process may not do behind enter_sandbox(). Each body runs in a process of its own.
#include "media/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace troupe::media {
namespace {

using Body = void (*)();

/// In a process of its own: enters the sandbox and runs `body`, then exits with 0.
void confined(Body body) {
  if (!enter_sandbox().ok()) _exit(9);
  body();
  _exit(0);
}

class Forbidden : public ::testing::TestWithParam<std::pair<const char*, Body>> {};

TEST_P(Forbidden, EndsTheProcess) {
  EXPECT_EXIT(confined(GetParam().second), ::testing::KilledBySignal(SIGSYS), "");
}

const std::pair<const char*, Body> kForbidden[] = {
    {"Open", [] { (void)::open("/etc/passwd", O_RDONLY); }},
    {"Socket", [] { (void)::socket(AF_INET, SOCK_STREAM, 0); }},
    {"Fork", [] { (void)::fork(); }},
    {"Execute", [] { (void)::execl("/bin/true", "true", nullptr); }},
    {"Kill", [] { (void)::kill(::getppid(), 0); }},
    {"Trace", [] { (void)::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }},
    {"RaiseALimit",
     [] {
       rlimit limit{};
       (void)::setrlimit(RLIMIT_CORE, &limit);
     }},
    {"ExecutableMemory",
     [] { (void)::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }},
    {"MakeMemoryExecutable",
     [] {
       void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       (void)::mprotect(page, 4096, PROT_READ | PROT_EXEC);
     }},
    {"DuplicateADescriptor", [] { (void)::fcntl(STDERR_FILENO, F_DUPFD, 10); }},
    {"WriteElsewhere", [] { (void)!::write(STDOUT_FILENO, "x", 1); }},
};

INSTANTIATE_TEST_SUITE_P(All, Forbidden, ::testing::ValuesIn(kForbidden),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(Sandbox, WhatDecodersNeedIsAllowed) {
  EXPECT_EXIT(confined([] {
                std::vector<char> large(100 << 20, 'x');
                std::vector<char> small(100, 'x');
                if (::write(STDERR_FILENO, "still here", 10) != 10) _exit(8);
              }),
              ::testing::ExitedWithCode(0), "still here");
}

TEST(Sandbox, MemoryIsLimited) {
  EXPECT_EXIT(confined([] {
                void* much = ::mmap(nullptr, std::size_t{3} << 30, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (much != MAP_FAILED) _exit(8);
              }),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace troupe::media
