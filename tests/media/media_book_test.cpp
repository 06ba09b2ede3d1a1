// What is held of pictures, and when it goes, without threads.
#include "actors/media/media_book.h"

#include <gtest/gtest.h>

#include "ipc/patch_region.h"

namespace troupe {
namespace {

constexpr PatchGrid kSmall{1, 4, 4}, kLarge{1, 8, 8};

class MediaBookTest : public ::testing::Test {
 protected:
  static std::uint64_t room(const PatchGrid& grid) { return ipc::PatchRegion::bytes_of(grid); }

  static http::MediaSource file(const std::string& base64, const std::string& name = {}) {
    http::MediaSource source;
    source.file = base64;
    source.name = name;
    source.param = "messages.0.content.1";
    return source;
  }
  static MeasureMedia job(std::uint64_t exchange, std::vector<http::MediaSource> items,
                          const std::string& client = "key:a", const std::string& salt = {}) {
    return {0, exchange, "r" + std::to_string(exchange), client, salt, std::move(items)};
  }

  MediaBook& book() {
    if (!book_) book_ = std::make_unique<MediaBook>(bounds_, HashKey{1, 2});
    return *book_;
  }
  void measure(MeasureMedia&& work) { book().measure(std::move(work), now_, effects_); }
  /// Threads measure what they were given: the bytes are those of the text, the grid as `sizes` says.
  void do_measuring() {
    for (MeasureWork& work : std::exchange(effects_.measure, {})) {
      MeasuredFile done;
      done.bytes = work.source.file.size();
      done.grid = work.source.file.front() == 'L' ? kLarge : kSmall;
      done.contents = siphash({3, 4}, std::as_bytes(std::span(work.source.file)));
      if (work.source.file.front() == '!')
        done.status = invalid("is not base64 at offset 0", {}, "invalid_image");
      book().measured(work.ticket, std::move(done), effects_);
    }
  }
  void prepare(std::uint64_t exchange) { book().prepare({0, exchange}, now_, effects_); }
  void do_preparing(const Status& status = {}) {
    for (PrepareWork& work : std::exchange(effects_.prepare, {})) {
      const std::uint64_t place = ++places_;
      book().prepared(work.ticket, {status, {place, place}, {place * 4096, place}}, effects_);
    }
  }
  void cancel_dropped() {
    for (const std::uint64_t ticket : std::exchange(effects_.drop, {})) {
      if (std::erase_if(effects_.prepare, [&](const PrepareWork& work) { return work.ticket == ticket; }) > 0)
        book().prepared(ticket, {failure(Code::cancelled, "is not needed"), {}, {}}, effects_);
    }
  }
  void release(std::uint64_t exchange) { book().release({0, exchange}, effects_); }

  /// A request from its first question to its patches.
  void bring(std::uint64_t exchange, std::vector<http::MediaSource> items) {
    measure(job(exchange, std::move(items)));
    do_measuring();
    prepare(exchange);
    do_preparing();
  }

  MediaBounds bounds_{1000, 1 << 20, 1 << 20, 500, 4, 1000, "nothing is set"};
  std::unique_ptr<MediaBook> book_;
  MediaEffects effects_;
  std::int64_t now_ = 5;
  std::uint64_t places_ = 0;
  std::uint64_t exchange_ = 100;
};

TEST_F(MediaBookTest, ARequestIsMeasuredThenDecodedAndLeavesItsPatchesToTheCache) {
  measure(job(1, {file("one"), file("Large")}));
  ASSERT_EQ(effects_.measure.size(), 2u);
  EXPECT_TRUE(effects_.measured.empty());
  do_measuring();
  ASSERT_EQ(effects_.measured.size(), 1u);
  ASSERT_EQ(effects_.measured[0].answer.items.size(), 2u);
  EXPECT_EQ(effects_.measured[0].answer.items[0].grid, kSmall);
  EXPECT_EQ(effects_.measured[0].answer.items[1].grid, kLarge);
  EXPECT_TRUE(effects_.prepare.empty()) << "nothing is decoded before its size is known to fit";
  EXPECT_EQ(book().file_bytes(), 8u);
  prepare(1);
  EXPECT_EQ(effects_.prepare.size(), 2u);
  do_preparing();
  ASSERT_EQ(effects_.ready.size(), 1u);
  EXPECT_TRUE(effects_.ready[0].answer.status.ok());
  EXPECT_EQ(effects_.ready[0].decoded, 2u);
  EXPECT_EQ(effects_.ready[0].answer.items[1].place.generation, 2u);
  EXPECT_EQ(book().file_bytes(), 0u);
  EXPECT_EQ(book().patch_bytes(), room(kSmall) + room(kLarge));
  EXPECT_EQ(book().cached_bytes(), 0u);
  release(1);
  release(1);  // is nothing
  EXPECT_EQ(book().cached_bytes(), room(kSmall) + room(kLarge));
  EXPECT_TRUE(effects_.remove.empty());
  EXPECT_EQ(book().requests(), 0u);
}

TEST_F(MediaBookTest, WithoutACacheThePatchesGoWithTheRequest) {
  bounds_.cached_bytes = 0;
  bring(1, {file("one"), file("one")});
  EXPECT_EQ(book().entries(), 1u) << "the same image twice is one entry";
  EXPECT_TRUE(effects_.remove.empty());
  release(1);
  ASSERT_EQ(effects_.remove.size(), 1u);
  EXPECT_EQ(effects_.remove[0].generation, 1u);
  EXPECT_EQ(book().patch_bytes(), 0u);
  EXPECT_EQ(book().entries(), 0u);
}

TEST_F(MediaBookTest, AnImageThatIsInMemoryIsNotDecodedAgain) {
  bring(1, {file("one")});
  release(1);
  bring(2, {file("one")});
  ASSERT_EQ(effects_.ready.size(), 2u);
  EXPECT_EQ(effects_.ready[1].decoded, 0u);
  EXPECT_EQ(effects_.ready[1].answer.items[0].place, effects_.ready[0].answer.items[0].place);
  http::MediaSource other = file("one");
  other.limits.max_pixels = 28 * 28 * 10;
  bring(3, {other});
  EXPECT_EQ(effects_.ready[2].decoded, 1u) << "other limits make another image";
  measure(job(4, {file("one")}, "key:a", "a salt"));
  do_measuring();
  prepare(4);
  EXPECT_EQ(effects_.prepare.size(), 1u) << "as does another salt";
}

TEST_F(MediaBookTest, WhatIsFoundInMemoryIsCounted) {
  bring(1, {file("one"), file("one"), file("two")});
  EXPECT_EQ(book().stats().misses, 2);
  EXPECT_EQ(book().stats().hits, 1) << "the same image twice";
  release(1);
  EXPECT_EQ(book().stats().cached_entries, 2);
  bring(2, {file("one")});
  EXPECT_EQ(book().stats().hits, 2);
  for (const std::uint64_t exchange : {3u, 4u}) {
    measure(job(exchange, {file("three")}));
    do_measuring();
    prepare(exchange);
  }
  EXPECT_EQ(book().in_work(false), 1);
  release(3);
  cancel_dropped();
  do_preparing();
  EXPECT_EQ(book().in_work(false), 0);
  EXPECT_EQ(book().stats().misses, 3);
  EXPECT_EQ(book().stats().hits, 3) << "it was in the making";
}

TEST_F(MediaBookTest, TwoRequestsWithOneImageAtTheSameTimeHaveItDecodedOnce) {
  for (const std::uint64_t exchange : {1u, 2u}) {
    measure(job(exchange, {file("one")}));
    do_measuring();
    prepare(exchange);
  }
  EXPECT_EQ(effects_.prepare.size(), 1u);
  release(1);  // the one that it was decoded for
  EXPECT_TRUE(effects_.drop.empty()) << "the other one waits for it";
  do_preparing();
  ASSERT_EQ(effects_.ready.size(), 1u);
  EXPECT_EQ(effects_.ready[0].request, (MediaRequestId{0, 2}));
}

TEST_F(MediaBookTest, WorkThatNobodyWantsIsDroppedUnlessItIsWantedAgain) {
  measure(job(1, {file("one")}));
  do_measuring();
  prepare(1);
  release(1);
  ASSERT_EQ(effects_.drop.size(), 1u);
  cancel_dropped();
  EXPECT_EQ(book().entries(), 0u);
  EXPECT_EQ(book().patch_bytes() + book().file_bytes(), 0u);

  measure(job(2, {file("one")}));
  do_measuring();
  prepare(2);
  release(2);
  measure(job(3, {file("one")}));
  do_measuring();
  prepare(3);
  EXPECT_EQ(effects_.prepare.size(), 1u);
  cancel_dropped();
  EXPECT_EQ(effects_.prepare.size(), 1u) << "it is asked for again";
  do_preparing();
  ASSERT_EQ(effects_.ready.size(), 1u);
  EXPECT_TRUE(effects_.ready[0].answer.status.ok());
}

TEST_F(MediaBookTest, AnImageThatWasDecodedForNobodyIsKeptForLater) {
  measure(job(1, {file("one")}));
  do_measuring();
  prepare(1);
  release(1);
  do_preparing();  // it had begun
  EXPECT_EQ(book().cached_bytes(), room(kSmall));
  EXPECT_TRUE(effects_.ready.empty());
}

TEST_F(MediaBookTest, RefusalsNameTheField) {
  const auto refusal = [&](http::MediaSource source) {
    measure(job(++exchange_, {std::move(source)}));
    do_measuring();
    EXPECT_FALSE(effects_.measured.empty());
    return effects_.measured.back().answer.status;
  };
  Status status = refusal(file("!"));
  EXPECT_EQ(status.message, "messages.0.content.1 is not base64 at offset 0");
  EXPECT_EQ(status.param, "messages.0.content.1");
  EXPECT_EQ(status.reason, "invalid_image");
  http::MediaSource url = file("");
  url.url = "https://example.com/a.png";
  status = refusal(url);
  EXPECT_EQ(status.message,
            "messages.0.content.1 is a URL that this server does not fetch: \"https://example.com/a.png\"; "
            "nothing is set; send the bytes as a data: URL");
  EXPECT_EQ(refusal(file("")).message, "messages.0.content.1 has neither data nor a uuid");
  EXPECT_EQ(refusal(file("", "mine")).reason, "unknown_uuid");
  EXPECT_EQ(refusal(file(std::string(800, 'a'))).reason, "image_too_large");
  EXPECT_EQ(book().requests(), 0u);
  EXPECT_EQ(book().file_bytes(), 0u);
}

class MediaBookUrlTest : public MediaBookTest {
 protected:
  MediaBookUrlTest() { bounds_.why_not_fetched.clear(); }

  static http::MediaSource url(const std::string& name) {
    http::MediaSource source = file("");
    source.url = "https://example.com/" + name;
    return source;
  }
  /// The first of what is to be fetched is there.
  void fetched(std::uint64_t bytes) {
    const MeasureWork work = std::move(effects_.measure.at(0));
    effects_.measure.erase(effects_.measure.begin());
    MeasuredFile done;
    done.bytes = bytes;
    done.grid = kSmall;
    done.contents = siphash({3, 4}, std::as_bytes(std::span(work.source.url)));
    book().measured(work.ticket, std::move(done), effects_);
  }
  const Status& last_answer() { return effects_.measured.back().answer.status; }
};

TEST_F(MediaBookUrlTest, AUrlTakesNoRoomBeforeItsFileIsThere) {
  measure(job(1, std::vector(100, url("a"))));
  EXPECT_EQ(effects_.measure.size(), 100u) << "together they may be as many times the largest file";
  EXPECT_EQ(effects_.measure[0].source.url, url("a").url);
  EXPECT_EQ(effects_.measure[0].request, (MediaRequestId{0, 1}));
  EXPECT_EQ(book().file_bytes(), 0u) << "its host may be slow";
  measure(job(2, {file(std::string(400, 'a')), file(std::string(400, 'b'))}));
  EXPECT_EQ(effects_.measure.size(), 102u) << "others have all the room that there is";
}

TEST_F(MediaBookUrlTest, WhatIsFetchedCounts) {
  measure(job(1, {url("a"), url("b")}));
  fetched(300);
  EXPECT_EQ(book().file_bytes(), 300u);
  fetched(400);
  EXPECT_EQ(book().file_bytes(), 700u);
  EXPECT_TRUE(last_answer().ok());
  measure(job(2, {url("c")}));
  EXPECT_EQ(effects_.measure.size(), 1u) << "there is room for a file of the usual size";
  fetched(400);
  EXPECT_EQ(last_answer().code, Code::overloaded);
  EXPECT_EQ(last_answer().reason, "media_memory_full");
  measure(job(3, {url("a")}));
  fetched(300);
  EXPECT_TRUE(last_answer().ok()) << "a file that is held already takes no room";
  measure(job(4, {file(std::string(300, 'x')), url("d")}));
  EXPECT_TRUE(effects_.measure.empty()) << "it waits for room";
  release(1);
  release(3);
  EXPECT_EQ(effects_.measure.size(), 2u);
}

TEST_F(MediaBookUrlTest, FilesThatTogetherNeverFit) {
  measure(job(1, {url("a"), url("b"), url("c")}));
  fetched(400);
  fetched(400);
  fetched(400);
  EXPECT_EQ(last_answer().reason, "media_too_large");
  EXPECT_EQ(last_answer().param, "messages.0.content.1");
  EXPECT_EQ(book().file_bytes(), 0u);
  EXPECT_EQ(book().requests(), 0u);
}

TEST_F(MediaBookTest, TheSameVideoWithOtherFramesIsAnotherEntry) {
  http::MediaSource video = file("v");
  video.kind = MediaKind::video;
  http::MediaSource slower = video, same = video;
  slower.sampling.fps = 1;
  measure(job(1, {video, slower, same, file("v")}));
  do_measuring();
  EXPECT_EQ(book().entries(), 3u);
  prepare(1);
  ASSERT_EQ(effects_.prepare.size(), 3u);
  EXPECT_EQ(effects_.prepare[0].kind, MediaKind::video);
  EXPECT_EQ(effects_.prepare[1].sampling.fps, 1);
}

TEST_F(MediaBookTest, ANameOfAnImageIsNoneOfAVideo) {
  bring(1, {file("one", "mine")});
  http::MediaSource video = file("", "mine");
  video.kind = MediaKind::video;
  measure(job(2, {video}));
  EXPECT_EQ(effects_.measured.back().answer.status.reason, "unknown_uuid");
  measure(job(3, {file("", "mine")}));
  EXPECT_TRUE(effects_.measured.back().answer.status.ok());
}

TEST_F(MediaBookTest, AFaultOfOneItemEndsTheRequestAlone) {
  measure(job(1, {file("one"), file("!"), file("two")}));
  do_measuring();
  ASSERT_EQ(effects_.measured.size(), 1u);
  EXPECT_FALSE(effects_.measured[0].answer.status.ok());
  EXPECT_EQ(book().requests(), 0u);
  EXPECT_EQ(book().file_bytes(), 0u);
  EXPECT_EQ(book().entries(), 0u);
  prepare(1);
  ASSERT_EQ(effects_.ready.size(), 1u);
  EXPECT_EQ(effects_.ready[0].answer.status.code, Code::internal);
}

TEST_F(MediaBookTest, AnImageThatCannotBeDecodedFailsAllWhoWaitForItAndIsTriedAgainLater) {
  for (const std::uint64_t exchange : {1u, 2u}) {
    measure(job(exchange, {file("good"), file("bad", "mine")}));
    do_measuring();
    prepare(exchange);
  }
  ASSERT_EQ(effects_.prepare.size(), 2u);
  PrepareWork good = std::move(effects_.prepare.front());
  effects_.prepare.erase(effects_.prepare.begin());
  do_preparing(invalid("is damaged", {}, "invalid_image"));
  ASSERT_EQ(effects_.ready.size(), 2u);
  for (const auto& ready : effects_.ready) {
    EXPECT_EQ(ready.answer.status.message, "messages.0.content.1 is damaged");
    EXPECT_EQ(ready.answer.status.param, "messages.0.content.1");
  }
  EXPECT_EQ(book().requests(), 0u);
  ASSERT_EQ(effects_.drop.size(), 1u) << "the other image is not needed any more";
  EXPECT_EQ(effects_.drop[0], good.ticket);
  book().prepared(good.ticket, {failure(Code::cancelled, "is not needed"), {}, {}}, effects_);
  EXPECT_EQ(book().patch_bytes() + book().file_bytes(), 0u);
  bring(3, {file("bad")});
  EXPECT_TRUE(effects_.ready.back().answer.status.ok());
}

TEST_F(MediaBookTest, TheImageUnusedLongestMakesRoom) {
  bounds_.patch_bytes = 2 * room(kSmall);
  bring(1, {file("one")});
  bring(2, {file("two")});
  release(2);
  release(1);
  EXPECT_EQ(book().cached_bytes(), 2 * room(kSmall));
  bring(3, {file("three")});
  ASSERT_EQ(effects_.remove.size(), 1u);
  EXPECT_EQ(effects_.remove[0].generation, 2u);
  bring(4, {file("one")});
  EXPECT_EQ(effects_.ready.back().decoded, 0u) << "the one used last is there still";
}

TEST_F(MediaBookTest, WhoFindsNoRoomForPatchesWaitsInOrder) {
  bounds_.patch_bytes = room(kLarge) + room(kSmall);
  bring(1, {file("Large")});
  measure(job(2, {file("Larger")}));
  measure(job(3, {file("small")}));
  do_measuring();
  prepare(2);
  prepare(3);  // would fit, but has come later
  EXPECT_TRUE(effects_.prepare.empty());
  EXPECT_TRUE(book().waits());
  release(1);
  EXPECT_EQ(effects_.prepare.size(), 2u);
  EXPECT_EQ(effects_.remove.size(), 1u);
  EXPECT_FALSE(book().waits());
  do_preparing();
  EXPECT_EQ(effects_.ready.size(), 3u);
}

TEST_F(MediaBookTest, WhoFindsNoRoomForFilesWaitsToo) {
  bounds_.file_bytes = 300;
  measure(job(1, {file(std::string(200, 'a'))}));
  measure(job(2, {file(std::string(240, 'b'))}));
  EXPECT_EQ(effects_.measure.size(), 1u);
  do_measuring();
  EXPECT_EQ(effects_.measure.size(), 0u) << "the file is there until it is decoded";
  prepare(1);
  do_preparing();
  EXPECT_EQ(effects_.measure.size(), 1u);
}

TEST_F(MediaBookTest, AWaitEndsAndSoDoesThePatienceOfTheQueue) {
  bounds_.patch_bytes = room(kSmall);
  bounds_.most_waiting = 2;
  bring(1, {file("one")});
  for (const std::uint64_t exchange : {2u, 3u, 4u}) {
    measure(job(exchange, {file("image" + std::to_string(exchange))}));
    do_measuring();
    ++now_;
    prepare(exchange);
  }
  ASSERT_EQ(effects_.ready.size(), 2u) << "the queue is full";
  EXPECT_EQ(effects_.ready[1].request.exchange, 4u);
  EXPECT_EQ(effects_.ready[1].answer.status.code, Code::overloaded);
  EXPECT_EQ(effects_.ready[1].answer.status.reason, "media_memory_full");
  now_ += bounds_.longest_wait_ns - 2;
  book().refuse_late(now_, effects_);
  ASSERT_EQ(effects_.ready.size(), 3u);
  EXPECT_EQ(effects_.ready[2].request.exchange, 2u);
  EXPECT_TRUE(book().waits());
  EXPECT_EQ(book().stats().refused, 2);
  release(1);
  do_preparing();
  EXPECT_EQ(effects_.ready.back().request.exchange, 3u);
  EXPECT_TRUE(effects_.ready.back().answer.status.ok());
}

TEST_F(MediaBookTest, WhatCanNeverFitIsRefusedWithNumbers) {
  bounds_.file_bytes = 300;
  bounds_.patch_bytes = room(kLarge);
  measure(job(1, {file(std::string(240, 'a')), file(std::string(240, 'b'))}));
  ASSERT_EQ(effects_.measured.size(), 1u);
  EXPECT_EQ(effects_.measured[0].answer.status.code, Code::invalid_argument);
  EXPECT_NE(effects_.measured[0].answer.status.message.find("360 bytes"), std::string::npos)
      << effects_.measured[0].answer.status.message;
  EXPECT_NE(effects_.measured[0].answer.status.message.find("--media-memory"), std::string::npos);
  measure(job(2, {file("Large"), file("small")}));
  do_measuring();
  prepare(2);
  ASSERT_EQ(effects_.ready.size(), 1u);
  EXPECT_EQ(effects_.ready[0].answer.status.reason, "media_too_large");
  EXPECT_EQ(book().requests(), 0u);
}

TEST_F(MediaBookTest, AUuidNamesAnImageOfItsKeyAndSaltAlone) {
  bring(1, {file("one", "mine")});
  release(1);
  measure(job(2, {file("", "mine")}));
  ASSERT_EQ(effects_.measured.size(), 2u) << "there is nothing to measure";
  EXPECT_TRUE(effects_.measured[1].answer.status.ok());
  EXPECT_EQ(book().cached_bytes(), 0u) << "it is in use";
  prepare(2);
  ASSERT_EQ(effects_.ready.size(), 2u);
  EXPECT_EQ(effects_.ready[1].answer.items[0].contents, effects_.ready[0].answer.items[0].contents);
  measure(job(3, {file("", "mine")}, "key:b"));
  EXPECT_EQ(effects_.measured[2].answer.status.reason, "unknown_uuid");
  measure(job(4, {file("", "mine")}, "key:a", "salt"));
  EXPECT_EQ(effects_.measured[3].answer.status.reason, "unknown_uuid");
}

TEST_F(MediaBookTest, DataWinsOverTheUuidAndTheUuidNamesItFromThenOn) {
  bring(1, {file("one", "mine")});
  bring(2, {file("two", "mine")});
  EXPECT_EQ(effects_.ready[1].decoded, 1u);
  bring(3, {file("", "mine")});
  EXPECT_EQ(effects_.ready[2].answer.items[0].contents, effects_.ready[1].answer.items[0].contents);
}

TEST_F(MediaBookTest, AUuidGoesWithItsImage) {
  bounds_.cached_bytes = 0;
  bring(1, {file("one", "mine")});
  measure(job(2, {file("", "mine")}));
  EXPECT_TRUE(effects_.measured.back().answer.status.ok()) << "another request has it";
  release(1);
  release(2);
  measure(job(3, {file("", "mine")}));
  EXPECT_EQ(effects_.measured.back().answer.status.reason, "unknown_uuid");
}

TEST_F(MediaBookTest, AWithdrawnRequestGivesItsTurnAndItsRoomBack) {
  bounds_.patch_bytes = room(kSmall);
  bounds_.file_bytes = 4;
  bring(1, {file("one")});
  measure(job(2, {file("two")}));
  measure(job(3, {file("six")}));
  EXPECT_EQ(effects_.measure.size(), 1u);
  const std::uint64_t ticket = effects_.measure[0].ticket;
  release(2);  // while it is measured
  EXPECT_EQ(effects_.drop, std::vector<std::uint64_t>{ticket});
  EXPECT_EQ(effects_.measure.size(), 2u);
  do_measuring();
  EXPECT_EQ(effects_.measured.back().request.exchange, 3u);
  prepare(3);
  EXPECT_TRUE(book().waits());
  release(3);  // while it waits
  EXPECT_FALSE(book().waits());
  EXPECT_EQ(book().file_bytes(), 0u);
  release(1);
  EXPECT_EQ(book().patch_bytes(), book().cached_bytes());
}

}  // namespace
}  // namespace troupe
