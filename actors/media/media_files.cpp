#include "actors/media/media_files.h"

#include <sys/stat.h>

#include <array>
#include <span>
#include <utility>

#include "base/base64.h"
#include "ipc/memory_file.h"
#include "media/header/picture_header.h"

namespace troupe {

namespace {

MeasuredFile refused(Status status) {
  MeasuredFile out;
  out.status = std::move(status);
  return out;
}

Status no_memory() {
  return failure(Code::unavailable, "cannot be held: memory does not suffice; try again later");
}

/// Fills in what names the file.
Status add_file(MediaFile file, const HashKey& key, MeasuredFile& out) {
  const auto mapped = ipc::map_constant_file(file->get());
  if (!mapped.ok()) return no_memory();
  out.contents = siphash(key, mapped->bytes);
  out.bytes = mapped->bytes.size();
  out.files.push_back(std::move(file));
  return {};
}

}  // namespace

Result<MediaFile> file_of(std::string_view base64) {
  const auto bytes = decode_base64(base64);
  if (!bytes.ok()) return invalid("is " + bytes.status().message, {}, "invalid_image");
  auto file = ipc::make_constant_file("troupe-media", *bytes);
  if (!file.ok()) return no_memory();
  return std::make_shared<const ipc::Fd>(*std::move(file));
}

MeasuredFile measure_picture(MediaFile file, const PixelLimits& limits, const media::PictureBounds& bounds,
                             const HashKey& key) {
  struct stat st {};
  const bool is_empty = fstat(file->get(), &st) == 0 && st.st_size == 0;
  const auto mapped =
      is_empty ? Result<ipc::ConstantBytes>(ipc::ConstantBytes{}) : ipc::map_constant_file(file->get());
  if (!mapped.ok()) return refused(no_memory());
  const auto header = media::read_picture_header(
      {reinterpret_cast<const std::uint8_t*>(mapped->bytes.data()), mapped->bytes.size()}, bounds);
  if (!header.ok()) return refused(header.status());
  const auto grid = media::grid_of(header->shown_width(), header->shown_height(), limits);
  if (!grid.ok()) return refused(grid.status());
  MeasuredFile out;
  out.grid = *grid;
  out.status = add_file(std::move(file), key, out);
  return out;
}

MeasuredFile measure_file(std::string_view base64, const PixelLimits& limits,
                          const media::PictureBounds& bounds, const HashKey& key) {
  auto file = file_of(base64);
  if (!file.ok()) return refused(file.status());
  return measure_picture(*std::move(file), limits, bounds, key);
}

MeasuredFile measure_frames(const std::vector<std::string>& frames, const PixelLimits& limits,
                            const media::PictureBounds& bounds, const HashKey& key) {
  const auto at_frame = [](std::size_t number, Status status) {
    status.message = "has a frame, number " + std::to_string(number) + ", that " + status.message;
    return refused(std::move(status));
  };
  MeasuredFile out;
  std::vector<BlockHash> names;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    MeasuredFile frame = measure_file(frames[i], limits, bounds, key);
    if (!frame.status.ok()) return at_frame(i, std::move(frame.status));
    if (i > 0 && frame.grid != out.grid)
      return at_frame(i, invalid("has another size than the first", {}, "invalid_video"));
    out.grid = frame.grid;
    out.bytes += frame.bytes;
    names.push_back(frame.contents);
    out.files.push_back(std::move(frame.files.front()));
  }
  if (frames.size() == 1) {  // two files make it one of frames; the last counts twice
    out.files.push_back(out.files.front());
    names.push_back(names.front());
  }
  out.contents = siphash(key, std::as_bytes(std::span(names)));
  out.grid.frames = static_cast<std::int32_t>((frames.size() + 1) / kMergeFrames * kMergeFrames);
  return out;
}

MeasuredFile measure_video(MediaFile file, const media::VideoFacts& facts, const PixelLimits& limits,
                           const VideoSampling& sampling, const HashKey& key) {
  const auto frames = media::sampled_frames(facts, sampling);
  if (!frames.ok()) return refused(frames.status());
  const auto grid = media::video_grid(facts, frames->size(), limits);
  if (!grid.ok()) return refused(grid.status());
  MeasuredFile out;
  out.grid = *grid;
  out.video = facts;
  out.status = add_file(std::move(file), key, out);
  return out;
}

BlockHash contents_of(MediaKind kind, const PatchGrid& grid, std::span<const std::byte> patches,
                      const HashKey& key) {
  const BlockHash bytes = siphash(key, patches);
  const std::array<std::uint64_t, 6> all{static_cast<std::uint64_t>(kind),
                                         static_cast<std::uint64_t>(grid.frames),
                                         static_cast<std::uint64_t>(grid.rows),
                                         static_cast<std::uint64_t>(grid.columns),
                                         bytes.hi,
                                         bytes.lo};
  return siphash(key, std::as_bytes(std::span(all)));
}

}  // namespace troupe
