// The check of a card with processes that do as a script says: what is wrong, what hangs, what dies, and
// which kernels are left out then. No GPU is used.
#include "model/card_check/check_card.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/build_id.h"
#include "base/spawn.h"
#include "model/card_check/check_lines.h"
#include "model/card_check/start_check.h"
#include "support/temp_directory.h"

namespace troupe::model {
namespace {

/// Lines of a shell script that stands for the process.
class Script {
 public:
  Script& begins(int index, const std::string& op, const std::string& way = "generic",
                 const std::string& avoidable = "", const std::string& needs = "") {
    return says({CheckEvent::begins, {std::to_string(index), op, "small", needs, way, avoidable}});
  }
  Script& right(int index) { return says({CheckEvent::right, {std::to_string(index), "3"}}); }
  Script& wrong(int index, const std::string& reason = "number 0 is 1 instead of 2") {
    return says({CheckEvent::wrong, {std::to_string(index), "3", reason}});
  }
  Script& ends(int count) { return says({CheckEvent::ends, {std::to_string(count)}}); }
  Script& does(const std::string& command) {
    text_ += command + "\n";
    return *this;
  }
  Script& says(const CheckLine& line) {
    std::string text = to_text(line);
    text.pop_back();
    return does("printf '%s\\n' '" + text + "'");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Runs what `script` gives for each order, and remembers the orders.
class Processes {
 public:
  explicit Processes(std::function<Script(const CheckOrder&)> script) : script_(std::move(script)) {}
  StartChecks start() {
    return [this](const CheckOrder& order) -> Result<CheckProcess> {
      orders.push_back(order);
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) return failure(Code::internal, "no pipe");
      OwnedFd lines(ends[0]), written(ends[1]);
      const auto pid = spawn({.executable = "/bin/sh",
                              .arguments = {"sh", "-c", script_(order).text()},
                              .environment = {"PATH=/usr/bin:/bin"},
                              .output = written.get(),
                              .death_signal = SIGKILL});
      if (!pid.ok()) return pid.status();
      return CheckProcess{*pid, std::move(lines)};
    };
  }
  std::vector<CheckOrder> orders;

 private:
  std::function<Script(const CheckOrder&)> script_;
};

TEST(CheckCard, AllRight) {
  Processes processes([](const CheckOrder&) {
    return Script()
        .does("echo a library speaks")
        .begins(0, "Embed")
        .right(0)
        .begins(1, "Mlp", "stream", "product.stream")
        .right(1)
        .ends(2);
  });
  std::vector<CheckedOp> seen;
  const auto made = check_card(3, processes.start(), {}, [&](const CheckedOp& op) { seen.push_back(op); });
  ASSERT_TRUE(made.ok()) << made.status().message;
  EXPECT_TRUE(made->usable);
  EXPECT_EQ(made->checks, 2);
  EXPECT_TRUE(made->avoided.empty());
  EXPECT_TRUE(made->failures.empty());
  ASSERT_EQ(processes.orders.size(), 1u);
  EXPECT_EQ(processes.orders[0].ordinal, 3);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].op, "Mlp");
  EXPECT_EQ(seen[1].way, "stream");
  EXPECT_EQ(seen[1].milliseconds, 3);
  EXPECT_TRUE(seen[1].right);
}

TEST(CheckCard, AWrongWayIsLeftOutAndAllRunsAgain) {
  Processes processes([](const CheckOrder& order) {
    const bool avoided = order.avoided.contains(KernelWay::attention_flash);
    Script script;
    script.begins(0, "Embed").right(0);
    if (avoided) return script.begins(1, "Attention", "decode", "attention.decode").right(1).ends(2);
    return script.begins(1, "Attention", "flash", "attention.flash").wrong(1).ends(2);
  });
  const auto made = check_card(0, processes.start());
  ASSERT_TRUE(made.ok()) << made.status().message;
  EXPECT_TRUE(made->usable);
  EXPECT_EQ(made->avoided, KernelWays{KernelWay::attention_flash});
  ASSERT_EQ(made->failures.size(), 1u);
  EXPECT_EQ(made->failures[0].op, "Attention");
  EXPECT_EQ(made->failures[0].way, "flash");
  EXPECT_EQ(made->failures[0].reason, "number 0 is 1 instead of 2");
  EXPECT_EQ(processes.orders.size(), 2u);
}

TEST(CheckCard, WithoutAnotherKernelTheCardIsOfNoUse) {
  Processes processes([](const CheckOrder&) {
    return Script().begins(0, "Embed", "one kernel").wrong(0).begins(1, "Mlp").right(1).ends(2);
  });
  const auto made = check_card(0, processes.start());
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->usable);
  EXPECT_EQ(processes.orders.size(), 1u) << "nothing can be left out";
  const std::string text = refusal(*made, {"NVIDIA X", 89, "550.1", "b"});
  for (const char* word :
       {"NVIDIA X", "8.9", "550.1", "Embed (small; one kernel)", "number 0 is 1 instead of 2"})
    EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
}

TEST(CheckCard, ReplacementsAreTriedDownToTheLastOne) {
  Processes processes([](const CheckOrder& order) {
    if (!order.avoided.contains(KernelWay::product_wgmma))
      return Script().begins(0, "Mlp", "wgmma", "product.wgmma").wrong(0).ends(1);
    if (!order.avoided.contains(KernelWay::product_stream))
      return Script().begins(0, "Mlp", "stream", "product.stream").wrong(0).ends(1);
    return Script().begins(0, "Mlp", "generic").wrong(0, "still wrong").ends(1);
  });
  const auto made = check_card(0, processes.start());
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->usable);
  EXPECT_EQ(processes.orders.size(), 3u);
  EXPECT_NE(refusal(*made, {}).find("still wrong"), std::string::npos);
}

TEST(CheckCard, AWayThatIsTakenThoughItIsLeftOutDoesNotGoOnForever) {
  Processes processes(
      [](const CheckOrder&) { return Script().begins(0, "Mlp", "wgmma", "product.wgmma").wrong(0).ends(1); });
  const auto made = check_card(0, processes.start());
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->usable);
  EXPECT_EQ(processes.orders.size(), 2u);
}

TEST(CheckCard, AnOpThatNeedsAWrongOneIsNotJudged) {
  Processes processes([](const CheckOrder& order) {
    Script script;
    if (order.avoided.empty())
      return script.begins(0, "Qkv", "stream", "product.stream")
          .wrong(0)
          .begins(1, "Attention", "generic", "", "Qkv")
          .wrong(1)
          .ends(2);
    return script.begins(0, "Qkv").right(0).begins(1, "Attention", "generic", "", "Qkv").right(1).ends(2);
  });
  const auto made = check_card(0, processes.start());
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->usable);
  EXPECT_EQ(made->failures.size(), 1u);
  EXPECT_EQ(made->avoided, KernelWays{KernelWay::product_stream});
}

TEST(CheckCard, AProcessThatDiesOrHangsIsWrongAndTheNextOneGoesOnBehindIt) {
  for (const char* const end : {"kill -11 $$", "exit 1", "exec sleep 1000"}) {
    Processes processes([end](const CheckOrder& order) {
      Script script;
      if (order.first == 0) script.begins(0, "Embed").right(0);
      if (order.first <= 1 && order.avoided.empty())
        return script.begins(1, "Mlp", "stream", "product.stream").does(end);
      if (order.first <= 1) script.begins(1, "Mlp").right(1);
      return script.begins(2, "Sample").right(2).ends(3);
    });
    const bool hangs = std::string_view(end).starts_with("exec");
    const auto made =
        check_card(0, processes.start(), {.each = std::chrono::milliseconds(hangs ? 1000 : 60'000)});
    ASSERT_TRUE(made.ok()) << made.status().message;
    EXPECT_TRUE(made->usable) << end;
    ASSERT_EQ(made->failures.size(), 1u) << end;
    EXPECT_EQ(made->failures[0].op, "Mlp");
    EXPECT_FALSE(made->failures[0].reason.empty());
    ASSERT_EQ(processes.orders.size(), 3u) << end;
    EXPECT_EQ(processes.orders[1].first, 2) << "behind the one that ended it";
    EXPECT_EQ(processes.orders[2].first, 0);
  }
}

TEST(CheckCard, BehindAFaultThatWasReportedTheNextProcessGoesOn) {
  Processes processes([](const CheckOrder& order) {
    if (order.avoided.empty() && order.first == 0)
      return Script()
          .begins(0, "Mlp", "stream", "product.stream")
          .wrong(0, "an illegal address")
          .does("exit 1");
    Script script;
    if (order.first == 0) script.begins(0, "Mlp").right(0);
    return script.begins(1, "Sample").right(1).ends(2);
  });
  const auto made = check_card(0, processes.start());
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->usable);
  ASSERT_EQ(made->failures.size(), 1u);
  EXPECT_EQ(made->failures[0].reason, "an illegal address");
}

TEST(CheckCard, TooManyDeathsEndIt) {
  Processes processes(
      [](const CheckOrder& order) { return Script().begins(order.first, "Mlp").does("exit 1"); });
  const auto made = check_card(0, processes.start(), {.most_deaths = 3});
  EXPECT_EQ(made.status().code, Code::unavailable);
  EXPECT_EQ(processes.orders.size(), 4u);
}

TEST(CheckCard, AProcessThatChecksNothingIsNoCheck) {
  for (const char* const end : {"exit 0", "exec sleep 1000"}) {
    Processes processes([end](const CheckOrder&) { return Script().does(end); });
    const bool hangs = std::string_view(end).starts_with("exec");
    const auto made =
        check_card(0, processes.start(), {.start = std::chrono::milliseconds(hangs ? 1000 : 60'000)});
    EXPECT_EQ(made.status().code, Code::unavailable) << end;
    EXPECT_EQ(processes.orders.size(), 1u);
  }
  Processes unusable([](const CheckOrder&) {
    return Script()
        .says({CheckEvent::unusable, {std::to_string(static_cast<int>(Code::unsupported)), "No driver."}})
        .does("exit 1");
  });
  const auto made = check_card(0, unusable.start());
  EXPECT_EQ(made.status().code, Code::unsupported);
  EXPECT_EQ(made.status().message, "No driver.");
}

TEST(CheckLines, AreReadAsTheyWereWritten) {
  const CheckLine line{CheckEvent::begins, {"0", "Mlp", "4 rows\tand\nmore", "", "stream", ""}};
  const auto read = read_check_line(to_text(line).substr(0, to_text(line).size() - 1));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->event, CheckEvent::begins);
  EXPECT_EQ(read->words, (std::vector<std::string>{"0", "Mlp", "4 rows and more", "", "stream", ""}));
  for (const char* text : {"", "right", "right\t1", "begins\t0\tMlp", "wrong\t1\t2", "hello\t1\t2"})
    EXPECT_FALSE(read_check_line(text).has_value()) << text;
}

class StartChecked : public ::testing::Test {
 protected:
  Result<StartCheck> check(config::CheckGpu when, bool verified = false, bool only_look = false) {
    return check_at_start({.when = when,
                           .verified = verified,
                           .only_look = only_look,
                           .key = key,
                           .directory = directory.path() / "cache",
                           .start = processes.start()});
  }
  const troupe::test::TempDirectory directory;
  CardKey key{"NVIDIA L20", 89, "580.1", "abc"};
  bool wrong = false, replaceable = true;
  Processes processes{[this](const CheckOrder& order) {
    if (!wrong || !order.avoided.empty()) return Script().begins(0, "Mlp").right(0).ends(1);
    return Script().begins(0, "Mlp", "stream", replaceable ? "product.stream" : "").wrong(0).ends(1);
  }};
};

TEST_F(StartChecked, AVerifiedCardIsNotCheckedUnlessAsked) {
  EXPECT_EQ(check(config::CheckGpu::automatic, true)->line, "kernels   verified on the NVIDIA L20");
  EXPECT_EQ(check(config::CheckGpu::never)->line, "kernels   not checked (--check-gpu never)");
  EXPECT_TRUE(processes.orders.empty());
  EXPECT_TRUE(check(config::CheckGpu::always, true)->line.starts_with("kernels   checked here, 1 checks in "))
      << "asked for";
  EXPECT_EQ(processes.orders.size(), 1u);
}

TEST_F(StartChecked, OnceForEachCardDriverAndBuild) {
  EXPECT_TRUE(check(config::CheckGpu::automatic)->line.starts_with("kernels   checked here, "));
  EXPECT_TRUE(check(config::CheckGpu::automatic)->line.starts_with("kernels   checked here before, "));
  EXPECT_EQ(processes.orders.size(), 1u);
  key.driver = "580.2";
  EXPECT_TRUE(check(config::CheckGpu::automatic)->line.starts_with("kernels   checked here, "));
  key.build = "def";
  EXPECT_TRUE(check(config::CheckGpu::automatic)->line.starts_with("kernels   checked here, "));
  key.card = "NVIDIA A10", key.capability = 86;
  EXPECT_TRUE(check(config::CheckGpu::automatic)->line.starts_with("kernels   checked here, "));
  EXPECT_EQ(processes.orders.size(), 4u);
  EXPECT_TRUE(check(config::CheckGpu::always)->line.starts_with("kernels   checked here, "));
  EXPECT_EQ(processes.orders.size(), 5u);
}

TEST_F(StartChecked, ADryRunRunsNothing) {
  EXPECT_EQ(check(config::CheckGpu::automatic, false, true)->line,
            "kernels   checked at the start, which takes some seconds");
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "cache"));
  EXPECT_EQ(check(config::CheckGpu::automatic, false, true)->warning, "");
  std::ofstream(directory.path() / "cache") << "a file in the place of the directory";
  const std::string warning = check(config::CheckGpu::automatic, false, true)->warning;
  EXPECT_NE(warning.find("is not kept: no file can be made in "), std::string::npos) << warning;
  EXPECT_TRUE(processes.orders.empty());
}

TEST_F(StartChecked, AWrongKernelIsNamedAndReplacedAlsoAtTheNextStart) {
  wrong = true;
  for (const bool first : {true, false}) {
    const auto made = check(config::CheckGpu::automatic);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->avoided, KernelWays{KernelWay::product_stream});
    EXPECT_NE(made->line.find("replaced by slower ones: product.stream"), std::string::npos) << made->line;
    EXPECT_EQ(processes.orders.size(), 2u) << first;
  }
}

TEST_F(StartChecked, WithoutAReplacementTheStartIsRefusedEachTime) {
  wrong = true, replaceable = false;
  for (const std::size_t checks : {1u, 2u}) {
    const auto made = check(config::CheckGpu::automatic);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code, Code::unsupported);
    EXPECT_NE(made.status().message.find("Mlp"), std::string::npos);
    EXPECT_NE(made.status().message.find("NVIDIA L20"), std::string::npos);
    EXPECT_NE(made.status().message.find("580.1"), std::string::npos);
    EXPECT_EQ(processes.orders.size(), checks) << "it may have been mended";
  }
}

TEST_F(StartChecked, WhatIsKeptMayBeAnything) {
  const std::string cache = directory.path() / "cache";
  ASSERT_TRUE(check(config::CheckGpu::automatic).ok());
  const std::string path = kept_path(cache, key);
  const auto rewritten = [&](const std::string& text) {
    std::ofstream(path) << text;
    return kept_check(cache, key).has_value();
  };
  std::ifstream file(path);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(rewritten(good));
  for (const char* bad :
       {"", "{}", "[]", "null", "{\"version\": 1}", "not JSON", "{\"version\": 99999999999999999999}"})
    EXPECT_FALSE(rewritten(bad)) << bad;
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return rewritten(text.replace(at, from.size(), to));
  };
  EXPECT_FALSE(changed("NVIDIA L20", "NVIDIA L40"));
  EXPECT_FALSE(changed("580.1", "580.3"));
  EXPECT_FALSE(changed("\"avoided\": \"\"", "\"avoided\": \"product.magic\""));
  EXPECT_FALSE(changed("\"checks\": 1", "\"checks\": \"1\""));
  EXPECT_FALSE(changed("\"checks\": 1", "\"checks\": 0"));
  EXPECT_FALSE(changed("\"version\": 1", "\"version\": 2"));
  EXPECT_FALSE(changed("\"usable\": true", "\"usable\": false")) << "no reason is given";
  EXPECT_TRUE(check(config::CheckGpu::automatic)->line.starts_with("kernels   checked here, "))
      << "checked anew";
  EXPECT_TRUE(kept_check(cache, key).has_value());
}

TEST_F(StartChecked, ADirectoryThatCannotBeWrittenIsAWarning) {
  std::ofstream(directory.path() / "cache") << "a file";
  const auto made = check(config::CheckGpu::automatic);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->line.starts_with("kernels   checked here, "));
  EXPECT_NE(made->warning.find("not kept in"), std::string::npos) << made->warning;
}

TEST(KeptCheck, HasEverything) {
  const troupe::test::TempDirectory directory;
  const CardKey key{"NVIDIA L20", 89, "580.1", "abc"};
  const CardCheck check{.checks = 7,
                        .seconds = 1.5,
                        .failures = {{"Mlp", "4 rows", "stream", "number \"0\"", KernelWay::product_stream},
                                     {"Embed", "x", "y", "z", std::nullopt}},
                        .avoided = {KernelWay::product_stream, KernelWay::attention_few},
                        .usable = false};
  ASSERT_TRUE(keep_check(directory.path(), key, check).ok());
  EXPECT_EQ(kept_check(directory.path(), key), check);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++files;
  EXPECT_EQ(files, 1) << "no part of a file is left";
}

TEST(CardKeys, OfThisProgram) {
  const std::string id = build_id();
  EXPECT_FALSE(id.empty());
  EXPECT_EQ(id, build_id());
  EXPECT_FALSE(driver_version().empty());
  CudaProbe gpu{.name = "cuda: NVIDIA H200, 132 multiprocessors, compute capability 9.0, 139.8 GiB",
                .total = 150'000'000'000,
                .capability = 90,
                .accelerated = true};
  EXPECT_EQ(key_of(gpu).card, "NVIDIA H200");
  EXPECT_EQ(key_of(gpu).build, id);
  EXPECT_TRUE(is_verified(gpu));
  gpu.accelerated = false;
  EXPECT_FALSE(is_verified(gpu)) << "the build has other code for it";
  gpu = {.name = "cuda: NVIDIA H100 80GB HBM3, 132 multiprocessors",
         .total = 84'900'000'000,
         .capability = 90,
         .accelerated = true};
  EXPECT_TRUE(is_verified(gpu));
  for (const char* name : {"NVIDIA H20", "NVIDIA H200 MIG 1g.18gb", "NVIDIA A100-SXM4-80GB", "NVIDIA L20",
                           "NVIDIA GH200 480GB"}) {
    gpu.name = std::string("cuda: ") + name + ", 1";
    EXPECT_FALSE(is_verified(gpu)) << name;
  }
}

}  // namespace
}  // namespace troupe::model
