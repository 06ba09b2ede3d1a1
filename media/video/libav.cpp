#include "media/video/libav.h"

#include <dlfcn.h>

#include <string>

namespace troupe::media {
namespace {

Libav functions;

class Library {
 public:
  Library(const std::string& name, unsigned version)
      : file_("lib" + name + ".so." + std::to_string(version)), handle_(::dlopen(file_.c_str(), RTLD_NOW)) {}

  bool ok() const { return handle_ != nullptr; }
  const std::string& file() const { return file_; }

  template <class Function>
  void find(const char* name, Function& function) {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr) handle_ = nullptr;
  }

 private:
  std::string file_;
  void* handle_;
};

Status find_all() {
  Library util("avutil", LIBAVUTIL_VERSION_MAJOR), codec("avcodec", LIBAVCODEC_VERSION_MAJOR),
      format("avformat", LIBAVFORMAT_VERSION_MAJOR), scale("swscale", LIBSWSCALE_VERSION_MAJOR);
  Libav& f = functions;
  const auto find = [](Library& library, auto... wanted) {
    (library.find(wanted.first, *wanted.second), ...);
  };
#define TROUPE_LIBAV(name) std::pair(#name, &f.name)
  find(util, TROUPE_LIBAV(av_log_set_level), TROUPE_LIBAV(av_malloc), TROUPE_LIBAV(av_free),
       TROUPE_LIBAV(av_dict_set), TROUPE_LIBAV(av_dict_free), TROUPE_LIBAV(av_display_rotation_get),
       TROUPE_LIBAV(av_frame_alloc), TROUPE_LIBAV(av_frame_free));
  find(codec, TROUPE_LIBAV(av_packet_alloc), TROUPE_LIBAV(av_packet_free), TROUPE_LIBAV(av_packet_unref),
       TROUPE_LIBAV(avcodec_find_decoder), TROUPE_LIBAV(avcodec_get_name),
       TROUPE_LIBAV(avcodec_alloc_context3), TROUPE_LIBAV(avcodec_free_context),
       TROUPE_LIBAV(avcodec_parameters_to_context), TROUPE_LIBAV(avcodec_open2),
       TROUPE_LIBAV(avcodec_send_packet), TROUPE_LIBAV(avcodec_receive_frame));
  find(format, TROUPE_LIBAV(avio_alloc_context), TROUPE_LIBAV(avio_context_free),
       TROUPE_LIBAV(avformat_alloc_context), TROUPE_LIBAV(avformat_open_input),
       TROUPE_LIBAV(avformat_close_input), TROUPE_LIBAV(avformat_find_stream_info),
       TROUPE_LIBAV(av_read_frame), TROUPE_LIBAV(av_stream_get_side_data));
  find(scale, TROUPE_LIBAV(sws_getContext), TROUPE_LIBAV(sws_freeContext), TROUPE_LIBAV(sws_getCoefficients),
       TROUPE_LIBAV(sws_setColorspaceDetails), TROUPE_LIBAV(sws_scale));
#undef TROUPE_LIBAV
  for (const Library* library : {&util, &codec, &format, &scale}) {
    if (library->ok()) continue;
    return failure(Code::unsupported,
                   "is a video, and " + library->file() +
                       " is not installed, which reads it: install the packages libavformat" +
                       std::to_string(LIBAVFORMAT_VERSION_MAJOR) + " and libswscale" +
                       std::to_string(LIBSWSCALE_VERSION_MAJOR));
  }
  f.av_log_set_level(AV_LOG_QUIET);
  return {};
}

}  // namespace

Status open_libav() {
  static const Status status = find_all();
  return status;
}

const Libav& libav() { return functions; }

}  // namespace troupe::media
