// What becomes of a picture at which its process dies, hangs or lies, and of the others.
#include "actors/media/media_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <thread>

#include "ipc/memory_file.h"
#include "media/support/kept_process.h"
#include "media/support/samples.h"
#include "support/temp_directory.h"

namespace troupe {
namespace {

using media::testing::Buffer;
using media::testing::KeptProcess;
using media::testing::KeptSetup;
using media::testing::sample;

ipc::Fd memory_of(const Buffer& bytes) {
  auto file = ipc::make_constant_file("picture", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(file.ok());
  return *std::move(file);
}

/// A picture that tells the fake process what to do.
ipc::Fd picture_with(const std::string& words) {
  Buffer bytes = sample("png_rgb.png");
  bytes.insert(bytes.end(), words.begin(), words.end());
  return memory_of(bytes);
}

KeptSetup real() { return {.executable = TROUPE_MEDIA_CHILD}; }
KeptSetup fake(MediaTimes times = {}) {
  return {.executable = TROUPE_FAKE_MEDIA_CHILD, .sandbox = false, .process = {.times = times}};
}

Status outcome_of(MediaProcess& process, const std::string& words) {
  return process.prepare(picture_with(words).get(), {}).status();
}

std::string hash_of(const PreparedPicture& picture) {
  const std::size_t size = static_cast<std::size_t>(picture.grid.patches()) * kPatchBytes;
  Buffer bytes(size);
  EXPECT_EQ(pread(picture.patches.get(), bytes.data(), size, 0), static_cast<ssize_t>(size));
  return media::testing::sha256(bytes);
}

// Every decoder works behind the filter of system calls.
TEST(MediaProcess, GivesTheReferencesPatchesForEverySample) {
  KeptProcess process(real());
  const auto expected = media::testing::sample_json("expected.json", "pictures");
  for (const auto& [name, value] : expected.items()) {
    SCOPED_TRACE(name);
    const auto prepared = process.prepare(memory_of(sample(name)).get(), {});
    ASSERT_TRUE(prepared.ok()) << prepared.status().message;
    EXPECT_EQ(prepared->grid, (PatchGrid{1, value["grid"][1].get<int>(), value["grid"][2].get<int>()}));
    EXPECT_EQ(hash_of(*prepared), value["patches"].get<std::string>());
  }
}

TEST(MediaProcess, NobodyCanChangeThePatches) {
  KeptProcess process(real());
  const auto prepared = process.prepare(memory_of(sample("jpeg_420.jpg")).get(), {});
  ASSERT_TRUE(prepared.ok());
  const int seals = fcntl(prepared->patches.get(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_LT(pwrite(prepared->patches.get(), "x", 1, 0), 0);
}

// 64 MiB of text in 64 KiB, twenty times, beside the pixels of png_rgb.png: what is no pixel is not unpacked.
TEST(MediaProcess, ABombBesideThePixelsIsNotUnpacked) {
  KeptProcess process(real());
  Buffer file = sample("bomb_text.png");
  constexpr std::size_t kTextAt = 33;  // behind the signature and IHDR
  const std::size_t size =
      12 + (std::size_t{file[kTextAt + 1]} << 16) + (std::size_t{file[kTextAt + 2]} << 8) + file[kTextAt + 3];
  const Buffer text(file.begin() + kTextAt, file.begin() + static_cast<std::ptrdiff_t>(kTextAt + size));
  for (int i = 1; i < 20; ++i) file.insert(file.begin() + kTextAt, text.begin(), text.end());
  const auto prepared = process.prepare(memory_of(file).get(), {});
  ASSERT_TRUE(prepared.ok()) << prepared.status().message;
  EXPECT_EQ(
      hash_of(*prepared),
      media::testing::sample_json("expected.json", "pictures")["png_rgb.png"]["patches"].get<std::string>());
}

TEST(MediaProcess, DamagedPicturesAreRefusedAndTheProcessGoesOn) {
  KeptProcess process(real());
  ASSERT_TRUE(process.prepare(memory_of(sample("png_rgb.png")).get(), {}).ok());
  const pid_t pid = process.pid();
  const auto expected = media::testing::sample_json("expected.json", "pictures");
  for (const auto& [name, value] : expected.items()) {
    Buffer bytes = sample(name);
    bytes.resize(bytes.size() / 4);
    const Status status = process.prepare(memory_of(bytes).get(), {}).status();
    EXPECT_EQ(status.code, Code::invalid_argument) << name;
    EXPECT_EQ(status.reason, "invalid_image") << name << " " << status.message;
  }
  EXPECT_EQ(process.pid(), pid);
}

TEST(MediaProcess, WhatTheHeaderRefusesReachesNoProcess) {
  KeptProcess process(real());
  EXPECT_EQ(process.prepare(memory_of({}).get(), {}).status().message, "is empty: 0 bytes are no picture");
  EXPECT_EQ(process.prepare(memory_of({'B', 'M', 0, 0}).get(), {}).status().reason, "unsupported_image");
  EXPECT_EQ(process.prepare(memory_of(sample("one_by_400.png")).get(), {1, 784}).status().reason,
            "image_too_large");
  EXPECT_EQ(process.pid(), 0);
}

TEST(MediaProcess, APictureAtWhichAProcessEndsIsGivenToTheNextOne) {
  KeptProcess process(fake({.picture = std::chrono::milliseconds(500)}));
  for (const char* end : {"crash once", "kill once", "hang once", "short once", "silence once", "id once",
                          "grid once", "unsealed once", "sized once", "reason once", "internal once"}) {
    const Status status = outcome_of(process, end);
    EXPECT_TRUE(status.ok()) << end << ": " << status.message;
  }
}

TEST(MediaProcess, AtTheSecondEndThePictureAloneIsRefused) {
  KeptProcess process(fake());
  for (const char* lie : {"crash", "short", "id", "grid", "unsealed", "sized", "reason", "internal"}) {
    const Status status = outcome_of(process, lie);
    EXPECT_EQ(status.code, Code::invalid_argument) << lie;
    EXPECT_EQ(status.reason, "invalid_image") << lie;
    EXPECT_EQ(status.message, "is damaged: two processes that were to decode it have broken down") << lie;
    EXPECT_EQ(process.pid(), 0) << lie << ": a process that lies does not stay";
    EXPECT_TRUE(outcome_of(process, "next").ok());
  }
  const Status killed = outcome_of(process, "kill");
  EXPECT_EQ(killed.code, Code::internal);
  EXPECT_EQ(killed.message, "cannot be decoded: two processes were killed at it; try again later");
}

TEST(MediaProcess, ADeadlineEndsAPictureThatHangs) {
  KeptProcess process(fake({.picture = std::chrono::milliseconds(200)}));
  for (const char* words : {"hang", "spin", "silence"}) {
    const Status status = outcome_of(process, words);
    EXPECT_EQ(status.reason, "image_too_complex") << words;
    EXPECT_EQ(status.message, "takes longer than 200 ms to decode") << words;
    EXPECT_EQ(process.pid(), 0);
  }
}

TEST(MediaProcess, TheKernelHoldsTheProcessToItsTimeToo) {
  KeptProcess process(real());
  ASSERT_TRUE(process.prepare(memory_of(sample("png_rgb.png")).get(), {}).ok());
  rlimit limit{};
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_CPU, nullptr, &limit), 0);
  EXPECT_GE(limit.rlim_cur, 15u);
  EXPECT_LE(limit.rlim_cur, 30u);
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_CORE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_max, 0u);
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_AS, nullptr, &limit), 0);
  EXPECT_NE(limit.rlim_max, RLIM_INFINITY);
}

TEST(MediaProcess, ADeathBetweenTwoPicturesIsNoPicturesFault) {
  KeptProcess process(fake());
  ASSERT_TRUE(outcome_of(process, "").ok());
  ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);
  while (process.starts() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Status status = outcome_of(process, "crash once");
  EXPECT_TRUE(status.ok()) << "it has both its attempts: " << status.message;
}

TEST(MediaProcess, KilledInTheMiddleOfAPictureItIsReplaced) {
  KeptProcess process(fake({.picture = std::chrono::milliseconds(60'000)}));
  ASSERT_TRUE(outcome_of(process, "").ok());
  const pid_t first = process.pid();
  std::thread killer([first] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::kill(first, SIGKILL);
  });
  const Status status = outcome_of(process, "hang once");
  killer.join();
  EXPECT_TRUE(status.ok()) << status.message;
  EXPECT_NE(process.pid(), first);
}

TEST(MediaProcess, AnyNumberOfEndsBeforeAPictureAreForgiven) {
  KeptProcess process(fake());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(outcome_of(process, "crash once").ok()) << i;
    const int starts = process.starts();
    ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);
    while (process.starts() == starts) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(outcome_of(process, "").ok());
}

// A process that reads what the one before it has not read answers it first.
TEST(MediaProcess, AnAnswerToAnOldRequestIsIgnored) {
  KeptProcess process(fake());
  EXPECT_TRUE(outcome_of(process, "old").ok());
}

TEST(MediaProcess, OnlyTheSupervisorSaysThatItHasEnded) {
  KeptProcess process(fake());
  const Status status = outcome_of(process, "end");
  EXPECT_EQ(status.reason, "invalid_image") << status.message;
  EXPECT_EQ(status.message, "is damaged: two processes that were to decode it have broken down");
  EXPECT_TRUE(outcome_of(process, "next").ok());
}

// The kernel names the sender: a second greeting is no new process.
TEST(MediaProcess, OneGreetsOnce) {
  KeptProcess process(fake());
  EXPECT_EQ(outcome_of(process, "greet").reason, "invalid_image");
  EXPECT_TRUE(outcome_of(process, "greet once").ok());
}

TEST(MediaProcess, AFreshOneFollowsAfterSoManyPictures) {
  KeptSetup setup = real();
  setup.process.pictures = 2;
  KeptProcess process(setup);
  std::vector<pid_t> pids;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(process.prepare(memory_of(sample("png_bits.png")).get(), {}).ok());
    pids.push_back(process.pid());
  }
  EXPECT_EQ(pids[1], 0) << "it ends before the next picture comes";
  EXPECT_NE(pids[0], pids[2]);
  EXPECT_EQ(pids[3], 0);
}

TEST(MediaProcess, WithoutOnePicturesFailAndMayBeTriedAgain) {
  KeptProcess process({.executable = "/bin/false"});
  const Status status = outcome_of(process, "");
  EXPECT_EQ(status.code, Code::unavailable);
  EXPECT_EQ(status.message, "cannot be decoded: the process that does it did not start; try again later");
}

TEST(MediaProcess, WithoutASandboxItSaysSoInOneSentence) {
  const test::TempDirectory folder;
  const std::string child = (folder.path() / "without_seccomp_media_child").string();
  std::filesystem::copy_file(TROUPE_MEDIA_CHILD, child);
  KeptProcess process({.executable = child});
  const Status status = outcome_of(process, "");
  EXPECT_EQ(status.code, Code::unsupported);
  EXPECT_TRUE(status.message.starts_with(
                  "cannot be decoded: this machine has no sandbox for the process that does it (") &&
              status.message.ends_with("); --media-sandbox off does without one"))
      << status.message;
  EXPECT_EQ(process.pid(), 0);
  KeptProcess bare({.executable = child, .sandbox = false});
  EXPECT_TRUE(outcome_of(bare, "").ok());
}

TEST(MediaProcess, AnotherThreadCanGiveUp) {
  KeptProcess process(fake({.picture = std::chrono::milliseconds(60'000)}));
  std::thread other([&process] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process.give_up();
  });
  const Status status = outcome_of(process, "hang");
  other.join();
  EXPECT_EQ(status.code, Code::unavailable);
  EXPECT_EQ(status.message, "is not decoded: the server is shutting down");
}

TEST(MediaProcess, AFileThatCanStillChangeIsNotTaken) {
  KeptProcess process(real());
  const ipc::Fd file(memfd_create("picture", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(pwrite(file.get(), "GIF89a", 6, 0), 6);
  EXPECT_EQ(process.prepare(file.get(), {}).status().code, Code::internal);
}

}  // namespace
}  // namespace troupe
