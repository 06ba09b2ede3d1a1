// Videos by libav.
#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "media/decode/composite.h"
#include "media/video/decode_video.h"
#include "media/video/libav.h"

namespace troupe::media {
namespace {

// Containers that hold pictures themselves: none names another file or an address. (That of MPEG-TS opens
// files of the C library for its texts.)
constexpr const char* kContainers = "mov,matroska,avi";
constexpr const char* kDecoders = "h264,hevc,vp8,vp9,libdav1d,av1,mpeg4,mjpeg";
constexpr std::array kCodecs{AV_CODEC_ID_H264, AV_CODEC_ID_HEVC,  AV_CODEC_ID_VP8,  AV_CODEC_ID_VP9,
                             AV_CODEC_ID_AV1,  AV_CODEC_ID_MPEG4, AV_CODEC_ID_MJPEG};
constexpr int kReadBytes = 64 << 10;
constexpr std::int64_t kProbeBytes = 8 << 20;
constexpr unsigned kMostStreams = 16;
constexpr std::int32_t kMostFrames = 1'000'000;
/// How far behind the last frame that can be decoded one may be wanted.
constexpr std::int32_t kMostMissing = 20;

/// The file, as libav reads it.
struct Reader {
  Bytes file;
  std::size_t at = 0;

  static int read(void* self, std::uint8_t* to, int size) {
    auto& reader = *static_cast<Reader*>(self);
    const std::size_t count = std::min(reader.file.size() - reader.at, static_cast<std::size_t>(size));
    if (count == 0) return AVERROR_EOF;
    std::memcpy(to, reader.file.data() + reader.at, count);
    reader.at += count;
    return static_cast<int>(count);
  }
  static std::int64_t seek(void* self, std::int64_t offset, int whence) {
    auto& reader = *static_cast<Reader*>(self);
    const auto size = static_cast<std::int64_t>(reader.file.size());
    if ((whence & AVSEEK_SIZE) != 0) return size;
    const std::int64_t from = whence == SEEK_SET   ? 0
                              : whence == SEEK_CUR ? static_cast<std::int64_t>(reader.at)
                                                   : size;
    if (offset < -from || offset > size - from) return AVERROR(EINVAL);
    reader.at = static_cast<std::size_t>(from + offset);
    return static_cast<std::int64_t>(reader.at);
  }
};

struct Release {
  void operator()(AVIOContext* io) const {
    libav().av_free(io->buffer);
    libav().avio_context_free(&io);
  }
  void operator()(AVFormatContext* format) const { libav().avformat_close_input(&format); }
  void operator()(AVCodecContext* codec) const { libav().avcodec_free_context(&codec); }
  void operator()(AVFrame* frame) const { libav().av_frame_free(&frame); }
  void operator()(AVPacket* packet) const { libav().av_packet_free(&packet); }
  void operator()(SwsContext* scaler) const { libav().sws_freeContext(scaler); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;

/// What libav made, or the end of its memory.
template <class T>
Owned<T> made(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return Owned<T>(object);
}

/// Whether the file has the first bytes of a container that is read.
bool begins_as_video(Bytes file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              std::min<std::size_t>(file.size(), 12));
  return text.starts_with("\x1A\x45\xDF\xA3") ||
         (text.size() == 12 &&
          (text.substr(4, 4) == "ftyp" || (text.starts_with("RIFF") && text.substr(8) == "AVI ")));
}

/// A file whose first video stream is read.
class Video {
 public:
  /// Throws std::bad_alloc.
  static Result<std::unique_ptr<Video>> open(Bytes file) {
    auto video = std::unique_ptr<Video>(new Video(file));
    if (Status status = video->open_file(); !status.ok()) return status;
    return video;
  }

  const AVStream& stream() const { return *stream_; }

  /// False at the end of the file, and where it is damaged.
  bool next(AVPacket& packet) {
    for (;;) {
      libav().av_packet_unref(&packet);
      if (libav().av_read_frame(format_.get(), &packet) < 0) return false;
      if (packet.stream_index == stream_->index && (packet.flags & AV_PKT_FLAG_DISCARD) == 0) return true;
    }
  }

  /// EXIF's orientation that stands for the stream's rotation.
  int orientation() const {
    std::size_t size = 0;
    const std::uint8_t* data = libav().av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, &size);
    if (data == nullptr || size < 9 * sizeof(std::int32_t)) return 1;
    std::array<std::int32_t, 9> matrix{};
    std::memcpy(matrix.data(), data, sizeof matrix);
    const double turn = -libav().av_display_rotation_get(matrix.data());  // degrees, clockwise
    if (!(turn >= -360 && turn <= 360)) return 1;
    constexpr std::array kOrientations{1, 6, 3, 8};
    return kOrientations[static_cast<std::size_t>(static_cast<int>(turn / 90 + 4.5) % 4)];
  }

 private:
  explicit Video(Bytes file) : reader_{file} {}

  Status open_file() {
    auto* buffer = static_cast<unsigned char*>(libav().av_malloc(kReadBytes));
    if (buffer == nullptr) throw std::bad_alloc();
    AVIOContext* io =
        libav().avio_alloc_context(buffer, kReadBytes, 0, &reader_, Reader::read, nullptr, Reader::seek);
    if (io == nullptr) {
      libav().av_free(buffer);
      throw std::bad_alloc();
    }
    io_.reset(io);
    AVFormatContext* format = libav().avformat_alloc_context();
    if (format == nullptr) throw std::bad_alloc();
    format->pb = io;
    format->flags |= AVFMT_FLAG_CUSTOM_IO;
    format->probesize = kProbeBytes;
    format->max_streams = kMostStreams;
    AVDictionary* settings = nullptr;
    libav().av_dict_set(&settings, "format_whitelist", kContainers, 0);
    libav().av_dict_set(&settings, "codec_whitelist", kDecoders, 0);
    libav().av_dict_set(&settings, "protocol_whitelist", "none", 0);
    const int error =
        libav().avformat_open_input(&format, nullptr, nullptr, &settings);  // frees it when it fails
    libav().av_dict_free(&settings);
    if (error < 0 && begins_as_video(reader_.file))
      return invalid_video("is a video that is cut or damaged: where its frames are cannot be read");
    if (error < 0)
      return unsupported_video("is no video that can be read: MP4, QuickTime, Matroska, WebM and AVI are");
    format_.reset(format);
    if (libav().avformat_find_stream_info(format, nullptr) < 0)
      return invalid_video("is a video with a damaged header");
    for (unsigned i = 0; i < format->nb_streams; ++i) {
      AVStream* stream = format->streams[i];
      const bool picture = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO &&
                           (stream->disposition & AV_DISPOSITION_ATTACHED_PIC) == 0;
      if (stream_ == nullptr && picture) {
        stream_ = stream;
      } else {
        stream->discard = AVDISCARD_ALL;
      }
    }
    if (stream_ == nullptr) return invalid_video("is a video without frames");
    const AVCodecID codec = stream_->codecpar->codec_id;
    if (std::ranges::find(kCodecs, codec) == kCodecs.end())
      return unsupported_video(std::string("is a video in the codec ") + libav().avcodec_get_name(codec) +
                               ": H.264, HEVC, VP8, VP9, AV1, MPEG-4 and Motion JPEG are read");
    return {};
  }

  Reader reader_;
  Owned<AVIOContext> io_;
  Owned<AVFormatContext> format_;  // before io_, which it reads
  AVStream* stream_ = nullptr;
};

/// Frames per second; 0: the file does not say.
double rate_of(const AVStream& stream) {
  for (const AVRational rate : {stream.avg_frame_rate, stream.r_frame_rate}) {
    if (rate.num > 0 && rate.den > 0) return av_q2d(rate);
  }
  return 0;
}

/// The order in which frames are shown, by the time stamps of their packets. Unknown where a container has
/// none: then frames are counted as they are decoded.
class FrameOrder {
 public:
  /// Reads the video to its end.
  explicit FrameOrder(Video& video, AVPacket& packet) {
    bool stamped = true;
    while (video.next(packet)) {
      stamped &= packet.pts != AV_NOPTS_VALUE;
      stamps_.push_back(packet.pts);
    }
    std::ranges::sort(stamps_);
    known_ = stamped && std::ranges::adjacent_find(stamps_) == stamps_.end();
  }

  bool known() const { return known_; }
  /// Of the frame that is shown then, or the next one.
  std::int32_t index_of(std::int64_t stamp) const {
    return static_cast<std::int32_t>(std::ranges::lower_bound(stamps_, stamp) - stamps_.begin());
  }

 private:
  std::vector<std::int64_t> stamps_;
  bool known_ = false;
};

/// Frames as pixels.
class Converter {
 public:
  /// Throws std::bad_alloc. False when libav knows no way.
  bool convert(const AVFrame& frame, Picture& out) {
    const auto format = static_cast<AVPixelFormat>(frame.format);
    if (scaler_ == nullptr || format != format_) {
      scaler_.reset(libav().sws_getContext(frame.width, frame.height, format, frame.width, frame.height,
                                           AV_PIX_FMT_RGB0, SWS_BICUBIC, nullptr, nullptr, nullptr));
      if (scaler_ == nullptr) return false;
      format_ = format;
      const int* from = libav().sws_getCoefficients(frame.colorspace);
      const int full = frame.color_range == AVCOL_RANGE_JPEG ? 1 : 0;
      libav().sws_setColorspaceDetails(scaler_.get(), from, full, libav().sws_getCoefficients(SWS_CS_DEFAULT),
                                       1, 0, 1 << 16,
                                       1 << 16);  // fails where there are no colours to convert
    }
    out = Picture(frame.width, frame.height);
    std::uint8_t* const rows[4] = {out.row(0), nullptr, nullptr, nullptr};
    const int pitch[4] = {static_cast<int>(out.row_bytes()), 0, 0, 0};
    return libav().sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rows, pitch) ==
           frame.height;
  }

 private:
  Owned<SwsContext> scaler_;
  AVPixelFormat format_ = AV_PIX_FMT_NONE;
};

/// Decodes one video once, in order.
class Decoding {
 public:
  Decoding(Video& video, const FrameOrder& order, const VideoFacts& facts,
           std::span<const std::int32_t> wanted, const TakeFrame& take)
      : video_(video),
        order_(order),
        facts_(facts),
        wanted_(wanted),
        take_(take),
        orientation_(video.orientation()) {}

  Status run() {
    const AVCodecParameters& parameters = *video_.stream().codecpar;
    const AVCodec* decoder = libav().avcodec_find_decoder(parameters.codec_id);
    if (decoder == nullptr)
      return unsupported_video(std::string("is a video in the codec ") +
                               libav().avcodec_get_name(parameters.codec_id) +
                               ", for which there is no decoder here");
    codec_ = made(libav().avcodec_alloc_context3(decoder));
    if (libav().avcodec_parameters_to_context(codec_.get(), &parameters) < 0)
      return invalid_video("is a video with a damaged header");
    codec_->thread_count = 1;
    // Decoders count the blocks at the edges, too.
    codec_->max_pixels = (std::int64_t{facts_.width} + 256) * (facts_.height + 256);
    if (libav().avcodec_open2(codec_.get(), decoder, nullptr) < 0)
      return invalid_video("is a video with a damaged header");
    const auto packet = made(libav().av_packet_alloc());
    Status status;
    while (status.ok() && taken_ < wanted_.size() && video_.next(*packet)) {
      skip_unless_wanted(*packet);
      if (libav().avcodec_send_packet(codec_.get(), packet.get()) < 0) ++decoded_;  // its frame is missing
      status = take_decoded();
    }
    if (status.ok() && taken_ < wanted_.size()) {
      libav().avcodec_send_packet(codec_.get(), nullptr);
      status = take_decoded();
    }
    return status.ok() ? take_missing() : status;
  }

 private:
  /// A frame that is not wanted and that no other one refers to is not decoded.
  void skip_unless_wanted(const AVPacket& packet) {
    const bool wanted = !order_.known() || std::ranges::binary_search(wanted_, order_.index_of(packet.pts));
    codec_->skip_frame = wanted ? AVDISCARD_DEFAULT : AVDISCARD_NONREF;
  }

  /// Takes what the decoder has ready.
  Status take_decoded() {
    while (taken_ < wanted_.size() && libav().avcodec_receive_frame(codec_.get(), next_.get()) == 0) {
      const AVCodecParameters& stated = *video_.stream().codecpar;
      if (next_->width != stated.width || next_->height != stated.height)
        return invalid_video("is a video whose frames change their size");
      std::swap(next_, last_);
      last_index_ = order_.known() ? order_.index_of(last_->pts) : decoded_++;
      if (Status status = take_up_to(last_index_); !status.ok()) return status;
    }
    return {};
  }

  /// The frame last decoded stands for every wanted one up to `index`.
  Status take_up_to(std::int32_t index) {
    for (; taken_ < wanted_.size() && wanted_[taken_] <= index; ++taken_) {
      Picture picture;
      if (!converter_.convert(*last_, picture))
        return invalid_video("is a video whose colours cannot be converted");
      picture = oriented(std::move(picture), orientation_);
      if (Status status = take_(taken_, last_index_, picture); !status.ok()) return status;
    }
    return {};
  }

  Status take_missing() {
    if (taken_ == wanted_.size()) return {};
    if (last_index_ < 0 || last_index_ + kMostMissing < wanted_.back())
      return invalid_video("is a video whose frame " + std::to_string(wanted_[taken_]) + " of " +
                           std::to_string(facts_.frames) + " cannot be decoded: it is cut or damaged");
    return take_up_to(wanted_.back());
  }

  Video& video_;
  const FrameOrder& order_;
  const VideoFacts facts_;
  const std::span<const std::int32_t> wanted_;
  const TakeFrame& take_;
  const int orientation_;
  Owned<AVCodecContext> codec_;
  Owned<AVFrame> next_ = made(libav().av_frame_alloc());
  Owned<AVFrame> last_ = made(libav().av_frame_alloc());
  Converter converter_;
  std::int32_t decoded_ = 0;      // frames, where their order is unknown
  std::size_t taken_ = 0;         // wanted frames handed over
  std::int32_t last_index_ = -1;  // of last_
};

Status no_memory() {
  return failure(Code::unavailable, "is a video for which memory does not suffice; try again later");
}

}  // namespace

Status open_video_libraries() { return open_libav(); }

Result<VideoFacts> probe_video(Bytes file, const PictureBounds& bounds) {
  try {
    auto video = Video::open(file);
    if (!video.ok()) return video.status();
    const AVStream& stream = (*video)->stream();
    const AVCodecParameters& stated = *stream.codecpar;
    if (stated.width < 1 || stated.height < 1) return invalid_video("is a video without frames");
    if (stated.width > bounds.side || stated.height > bounds.side ||
        std::int64_t{stated.width} * stated.height > bounds.pixels)
      return image_too_large("has frames of " + std::to_string(stated.width) + " x " +
                             std::to_string(stated.height) + " pixels: at most " +
                             std::to_string(bounds.pixels) + " are decoded");
    VideoFacts facts{stated.width, stated.height, 0, rate_of(stream)};
    if ((*video)->orientation() >= 5) std::swap(facts.width, facts.height);
    if (!(facts.frames_per_second > 0)) return invalid_video("is a video that states no rate of frames");
    const auto packet = made(libav().av_packet_alloc());
    while ((*video)->next(*packet)) {
      if (++facts.frames > kMostFrames)
        return invalid_video("is a video of more than " + std::to_string(kMostFrames) + " frames");
    }
    if (facts.frames == 0) return invalid_video("is a video without frames");
    return facts;
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

Status decode_video(Bytes file, const VideoFacts& facts, std::span<const std::int32_t> wanted,
                    const TakeFrame& take) {
  try {
    auto demuxed = Video::open(file), video = Video::open(file);
    if (!demuxed.ok()) return demuxed.status();
    if (!video.ok()) return video.status();
    const FrameOrder order(**demuxed, *made(libav().av_packet_alloc()));
    return Decoding(**video, order, facts, wanted, take).run();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

}  // namespace troupe::media
