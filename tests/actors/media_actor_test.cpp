// MEDIA with real threads and a decoder that the test plays.
#include "actors/media/media_actor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "actors/media/media_files.h"
#include "support/base64.h"
#include "support/patience.h"
#include "support/picture_decoder.h"

namespace troupe {
namespace {

using testing::FakeDecoder;
using testing::FakeVideoDecoder;

std::string sample(const std::string& name) {
  std::ifstream file(TROUPE_TEST_DATA "/media/" + name, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return testing::base64_of(bytes.str());
}

class MediaActorTest : public ::testing::Test {
 protected:
  MediaActorTest() {
    auto fd = ipc::PatchRegion::create(1 << 20);
    auto writer = ipc::PatchWriter::attach(fd->get());
    region_ = std::make_unique<ipc::PatchRegion>(*ipc::PatchRegion::attach(fd->get()));
    MediaParts parts;
    parts.bounds.why_not_fetched = "nothing is set";
    parts.threads.region = std::make_shared<ipc::PatchWriter>(*std::move(writer));
    parts.threads.make_decoder = [shared = decoder_](std::size_t, const Log&) {
      return std::make_unique<FakeDecoder>(shared);
    };
    parts.threads.make_video_decoder = [shared = video_](std::size_t, const Log&) {
      return std::make_unique<FakeVideoDecoder>(shared);
    };
    // What the header of the sample says.
    decoder_->grid = measure().grid;
    metrics_ = system_.spawn([told = told_](metrics_actor::pointer) -> metrics_actor::behavior_type {
      return {answer_beat,
              [](const StepStats&) {},
              [](const RequestStats&) {},
              [](const HttpStats&) {},
              [](const DoorStats&) {},
              [told](const MediaStats& stats) { told->push_back(stats); },
              [](const ProcessReports&) {},
              [](caf::get_atom) { return std::string(); }};
    });
    media_ = system_.spawn(media_behavior, std::move(parts), metrics_);
  }
  ~MediaActorTest() override {
    caf::anon_send_exit(media_, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(metrics_, caf::exit_reason::user_shutdown);
  }

  static MeasuredFile measure() { return measure_file(sample("jpeg_420.jpg"), {}, {}, {}); }

  static MeasureMedia job(std::uint64_t exchange, const std::string& file) {
    MeasureMedia out;
    out.exchange = exchange;
    out.request_id = "r";
    http::MediaSource& source = out.items.emplace_back();
    source.file = file;
    source.param = "messages.0.content.0";
    return out;
  }

  template <class Answer, class Message>
  Answer ask(const Message& message) {
    Answer out;
    self_->request(media_, caf::timespan(test::kPatience), message)
        .receive([&](Answer& answer) { out = std::move(answer); },
                 [&](const caf::error& error) { ADD_FAILURE() << system_.render(error); });
    return out;
  }

  caf::actor_system_config config_;
  caf::actor_system system_{config_};
  caf::scoped_actor self_{system_};
  std::shared_ptr<FakeDecoder::Shared> decoder_ = std::make_shared<FakeDecoder::Shared>();
  std::shared_ptr<FakeVideoDecoder::Shared> video_ = std::make_shared<FakeVideoDecoder::Shared>();
  std::unique_ptr<ipc::PatchRegion> region_;
  std::shared_ptr<std::vector<MediaStats>> told_ = std::make_shared<std::vector<MediaStats>>();
  metrics_actor metrics_;
  media_actor media_;
};

TEST_F(MediaActorTest, ARequestIsMeasuredPreparedAndReleased) {
  const auto measured = ask<MeasuredMedia>(job(1, sample("jpeg_420.jpg")));
  ASSERT_TRUE(measured.status.ok()) << measured.status.message;
  ASSERT_EQ(measured.items.size(), 1u);
  EXPECT_EQ(measured.items[0].grid, decoder_->grid);
  EXPECT_EQ(decoder_->asked, 0);
  const auto ready = ask<MediaReady>(PrepareMedia{0, 1});
  ASSERT_TRUE(ready.status.ok()) << ready.status.message;
  ASSERT_EQ(ready.items.size(), 1u);
  EXPECT_TRUE(region_->find(ready.items[0].place));
  self_->send(media_, ReleaseMedia{0, 1});
  EXPECT_TRUE(ask<MeasuredMedia>(job(2, sample("jpeg_420.jpg"))).status.ok());
  const auto again = ask<MediaReady>(PrepareMedia{0, 2});
  ASSERT_EQ(again.items.size(), 1u);
  EXPECT_EQ(again.items[0].place, ready.items[0].place) << "it was kept";
  EXPECT_EQ(decoder_->asked, 1);
}

TEST_F(MediaActorTest, MetricsHearsOfEveryChange) {
  const auto go = std::make_shared<std::atomic<bool>>(false);
  decoder_->outcome = video_->outcome = [go] {
    while (!*go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  };
  const auto now = [this] { return ask<MediaStats>(caf::get_atom::value); };
  EXPECT_EQ(now().file_limit, 256 << 20);
  ask<MeasuredMedia>(job(1, sample("jpeg_420.jpg")));
  EXPECT_GT(now().file_bytes, 0);
  ask<MeasuredMedia>(job(2, sample("jpeg_444.jpg")));
  for (const std::uint64_t exchange : {3u, 4u}) {
    MeasureMedia video = job(exchange, exchange == 3 ? "AAAA" : "BBBB");
    video.items.front().kind = MediaKind::video;
    video.items.front().limits = {28 * 28, 28 * 28 * 16};
    EXPECT_TRUE(ask<MeasuredMedia>(video).status.ok());
  }
  const auto prepare = [this](std::uint64_t exchange) {
    return self_->request(media_, caf::timespan(test::kPatience), PrepareMedia{0, exchange});
  };
  auto first = prepare(1), second = prepare(2), third = prepare(3), fourth = prepare(4);
  EXPECT_EQ(now().decodes_running, 2) << "there is one decoder, and one video at a time";
  EXPECT_EQ(now().decodes_waiting, 2);
  EXPECT_EQ(now().misses, 4);
  *go = true;
  for (auto* pending : {&first, &second, &third, &fourth}) {
    pending->receive([](MediaReady& ready) { EXPECT_TRUE(ready.status.ok()) << ready.status.message; },
                     [&](const caf::error& error) { ADD_FAILURE() << system_.render(error); });
  }
  self_->send(media_, ReleaseMedia{0, 1});
  const MediaStats last = now();
  EXPECT_EQ(last.decodes_running + last.decodes_waiting, 0);
  EXPECT_EQ(last.cached_entries, 1);
  EXPECT_GT(last.cached_bytes, 0);
  EXPECT_GT(last.patch_bytes, last.cached_bytes);
  self_->request(metrics_, caf::timespan(test::kPatience), caf::get_atom::value)
      .receive([](const std::string&) {}, [](const caf::error&) {});
  ASSERT_FALSE(told_->empty());
  EXPECT_EQ(told_->front().file_limit, 256 << 20) << "the limits are known from the start";
  EXPECT_EQ(told_->back(), last);
  for (std::size_t i = 1; i < told_->size(); ++i) EXPECT_NE((*told_)[i], (*told_)[i - 1]);
}

TEST_F(MediaActorTest, RefusalsAreAnswersAndEndTheRequest) {
  const auto measured = ask<MeasuredMedia>(job(1, "aGVsbG8="));
  EXPECT_EQ(measured.status.reason, "invalid_image");
  EXPECT_TRUE(measured.status.message.starts_with("messages.0.content.0 is ")) << measured.status.message;
  EXPECT_EQ(ask<MediaReady>(PrepareMedia{0, 1}).status.code, Code::internal);
  self_->send(media_, ReleaseMedia{0, 1});
  ask<MeasuredMedia>(job(2, sample("jpeg_420.jpg")));
  decoder_->outcome = [] { return invalid("is damaged", {}, "invalid_image"); };
  EXPECT_EQ(ask<MediaReady>(PrepareMedia{0, 2}).status.message, "messages.0.content.0 is damaged");
}

TEST_F(MediaActorTest, ARequestThatEndsWhileItIsDecodedIsAnswered) {
  const auto go = std::make_shared<std::atomic<bool>>(false);  // the decoder's thread outlives this test
  decoder_->outcome = [go] {
    while (!*go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  };
  ask<MeasuredMedia>(job(1, sample("jpeg_420.jpg")));
  auto pending = self_->request(media_, caf::timespan(test::kPatience), PrepareMedia{0, 1});
  self_->send(media_, ReleaseMedia{0, 1});
  pending.receive([](MediaReady& ready) { EXPECT_EQ(ready.status.code, Code::unavailable); },
                  [&](const caf::error& error) { ADD_FAILURE() << system_.render(error); });
  *go = true;
}

}  // namespace
}  // namespace troupe
