// Media processes of whole servers with fake children: a picture that ends one costs no other child.
#include <fcntl.h>

#include <sstream>

#include "actors/supervisor/local_requests.h"
#include "actors/supervisor/media_socket.h"
#include "ipc/wire.h"
#include "media/messages.h"
#include "supervisor/server_process.h"

namespace troupe::supervisor {
namespace {

class MediaChildTest : public SuperviseTest {
 protected:
  void SetUp() override {
    SuperviseTest::SetUp();
    setup_.counts.pictures = setup_.counts.videos = 1;
    setup_.take_patches = [] { return ipc::Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); };
    setup_.options.process.max_restarts = 0;  // a death that counts ends the server
  }
  /// What the fake media processes do from now on; see fake_child.cpp.
  void media(const std::string& how) { std::ofstream(base_ + "/media") << how; }
  Json process(const std::string& name) const {
    const Json page = status();
    for (const Json& one : page.is_object() ? page["processes"] : Json::array()) {
      if (one["name"] == name) return one;
    }
    return Json::object();
  }
  bool replaced(std::size_t lives) {
    return eventually([&] {
      return pids_of("media-0").size() == lives && process("media-0").value("state", "") == "ready";
    });
  }
  void expect_end(pid_t server) {
    kill(server, SIGTERM);
    EXPECT_EQ(wait_for(server), 0);
    EXPECT_TRUE(children_gone());
    for (const char* who : {"media-0", "video-0"}) {
      for (const pid_t pid : pids_of(who)) EXPECT_FALSE(alive(pid));
    }
    EXPECT_TRUE(nothing_left());
  }
};

TEST_F(MediaChildTest, IsAChildLikeOthersAndHoldsOneSocket) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  ASSERT_TRUE(replaced(1)) << read("stderr");
  EXPECT_EQ(process("media-0")["pid"], newest("media-0"));
  EXPECT_EQ(process("video-0")["pid"], newest("video-0"));
  EXPECT_EQ(count("media-0 holds 2"), 1) << "its socket and its control channel";
  expect_end(server);
}

TEST_F(MediaChildTest, ItsDeathsNeverCount) {
  const pid_t server = start();
  ASSERT_TRUE(replaced(1)) << read("stderr");
  for (std::size_t lives = 2; lives <= 21; ++lives) {
    kill(newest("media-0"), SIGKILL);
    ASSERT_TRUE(replaced(lives)) << read("stderr");
  }
  EXPECT_EQ(process("media-0")["restarts"], 20);
  EXPECT_EQ(process("video-0")["restarts"], 0);
  EXPECT_NE(read("stderr").find("media-0 was killed by signal 9 (Killed); it is started again\n"),
            std::string::npos);
  expect_end(server);
}

TEST_F(MediaChildTest, AnOrderlyEndIsNothingToWarnOf) {
  const pid_t server = start();
  ASSERT_TRUE(replaced(1)) << read("stderr");
  kill(newest("media-0"), SIGTERM);
  ASSERT_TRUE(replaced(2)) << read("stderr");
  EXPECT_EQ(read("stderr"), "");
  expect_end(server);
}

TEST_F(MediaChildTest, OneThatNeverComesUpIsTriedAgainAndTheServerIsReady) {
  media("early");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  ASSERT_TRUE(eventually([&] { return process("media-0").value("state", "") == "failing"; }));
  EXPECT_GE(pids_of("media-0").size(), 5u);
  EXPECT_EQ(process("media-0")["last_end"], "media-0 exited with code 7");
  media("ok");
  ASSERT_TRUE(eventually([&] { return process("media-0").value("state", "") == "ready"; }));
  EXPECT_EQ(status()["state"], "ready");
  expect_end(server);
}

TEST_F(MediaChildTest, WhatItWritesGoesToALogOfItsOwn) {
  setup_.open_log = [this](const std::string& actor) -> LogEvent {
    return [path = base_ + "/log-of-" + actor](LogLevel, std::string_view event,
                                               std::initializer_list<LogField> fields) {
      const LogField& field = *fields.begin();
      std::ofstream(path, std::ios::app)
          << event << " " << (field.text.empty() ? std::to_string(field.integer) : std::string(field.text))
          << std::endl;
    };
  };
  media("loud");
  const pid_t server = start();
  ASSERT_TRUE(replaced(1)) << read("stderr");
  ASSERT_TRUE(eventually([&] { return count("media-0 is done") + count("video-0 is done") == 2; }));
  media("ok");
  kill(newest("media-0"), SIGTERM);
  ASSERT_TRUE(replaced(2)) << read("stderr");
  std::istringstream log(read("log-of-media-0"));
  int written = 0, dropped = 0;
  for (std::string event, rest; log >> event && std::getline(log >> std::ws, rest);) {
    if (event == "output_dropped") {
      dropped += std::stoi(rest);
    } else if (++written == 1) {
      EXPECT_EQ(rest, "hello from media-0");
    }
  }
  EXPECT_EQ(written + dropped, 5002);
  EXPECT_LT(written, 1000);
  EXPECT_NE(read("log-of-video-0").find("hello from video-0"), std::string::npos);
  EXPECT_EQ(read("stderr"), "");
  expect_end(server);
}

TEST_F(MediaChildTest, ARestartOnRequestReplacesIt) {
  const auto ask = [this](const std::string& child) {
    const LocalRequest request{LocalRequest::Kind::restart, child, wire::kVersion, wire::kMessagesVersion};
    const auto answer =
        ask_supervisor(setup_.options.process.runtime_dir, setup_.options.http.port, request, kPatience);
    EXPECT_TRUE(answer.ok()) << answer.status().message;
    return answer.ok() ? Json::parse(*answer) : Json();
  };
  const std::string installed = base_ + "/installed";
  std::filesystem::copy_file(TROUPE_FAKE_CHILD, installed);
  setup_.installed = installed;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  for (const std::string name : {"media-0", "video-0"}) {
    ASSERT_TRUE(eventually([&] { return process(name).value("state", "") == "ready"; })) << name;
    EXPECT_EQ(ask(name), (Json{{"ok", true}}));
    ASSERT_TRUE(eventually([&] {
      return pids_of(name).size() == 2 && process(name).value("state", "") == "ready";
    })) << name;
    EXPECT_EQ(process(name)["restarts"], 1);
    const std::string now = "/proc/" + std::to_string(newest(name)) + "/exe";
    EXPECT_EQ(std::filesystem::read_symlink(now), installed);
  }
  for (const std::string other : {"front", "engine", "worker"}) EXPECT_EQ(pids_of(other).size(), 1u) << other;
  EXPECT_EQ(read("stderr"), "") << "what is asked for is nothing to warn of";
  EXPECT_EQ(ask("video-7")["error"],
            "there is no video-7: the server has front, engine, worker-0, media-0, video-0");
  expect_end(server);
}

TEST_F(MediaChildTest, EndsWithTheFrontThatAskedIt) {
  setup_.options.process.max_restarts = 1;
  const pid_t server = start();
  ASSERT_TRUE(replaced(1)) << read("stderr");
  kill(newest("front"), SIGKILL);
  ASSERT_TRUE(replaced(2)) << read("stderr");
  ASSERT_TRUE(state_becomes("ready"));
  expect_end(server);
}

TEST(MediaSocket, TellsTheFrontOfAnEndAlsoWhenNobodyReads) {
  const auto socket = MediaSocket::make();
  ASSERT_TRUE(socket.ok());
  while (::send(socket->process_end(), "junk", 4, MSG_DONTWAIT) == 4) {
  }
  socket->process_ended({0, SIGKILL});
  const auto heard = media::receive_reply(socket->front_end());
  ASSERT_TRUE(heard && heard->reply);
  EXPECT_EQ(heard->sender, getpid());
  EXPECT_EQ(heard->reply->id, media::kEndId);
  EXPECT_EQ(heard->reply->code, SIGKILL);
  EXPECT_FALSE(media::receive_reply(socket->front_end()));
}

TEST(MediaSocket, WhatAProcessHasNotReadItsSuccessorDoesNotSee) {
  const auto socket = MediaSocket::make();
  ASSERT_TRUE(socket.ok());
  const media::MediaRequest request{.id = 1};
  ASSERT_TRUE(media::send_request(socket->front_end(), request, STDIN_FILENO, STDIN_FILENO));
  socket->process_ended({1, 0});
  char byte = 0;
  EXPECT_LT(::recv(socket->process_end(), &byte, 1, MSG_DONTWAIT), 0);
}

}  // namespace
}  // namespace troupe::supervisor
