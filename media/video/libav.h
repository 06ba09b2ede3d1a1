#pragma once
// The functions of libav that are called, from the shared libraries of the headers' versions.
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libswscale/swscale.h>
}

#include "base/status.h"

namespace troupe::media {

struct Libav {
#define TROUPE_LIBAV(name) decltype(&::name) name = nullptr
  TROUPE_LIBAV(av_log_set_level);
  TROUPE_LIBAV(av_malloc);
  TROUPE_LIBAV(av_free);
  TROUPE_LIBAV(av_dict_set);
  TROUPE_LIBAV(av_dict_free);
  TROUPE_LIBAV(av_display_rotation_get);
  TROUPE_LIBAV(av_frame_alloc);
  TROUPE_LIBAV(av_frame_free);
  TROUPE_LIBAV(av_packet_alloc);
  TROUPE_LIBAV(av_packet_free);
  TROUPE_LIBAV(av_packet_unref);
  TROUPE_LIBAV(avcodec_find_decoder);
  TROUPE_LIBAV(avcodec_get_name);
  TROUPE_LIBAV(avcodec_alloc_context3);
  TROUPE_LIBAV(avcodec_free_context);
  TROUPE_LIBAV(avcodec_parameters_to_context);
  TROUPE_LIBAV(avcodec_open2);
  TROUPE_LIBAV(avcodec_send_packet);
  TROUPE_LIBAV(avcodec_receive_frame);
  TROUPE_LIBAV(avio_alloc_context);
  TROUPE_LIBAV(avio_context_free);
  TROUPE_LIBAV(avformat_alloc_context);
  TROUPE_LIBAV(avformat_open_input);
  TROUPE_LIBAV(avformat_close_input);
  TROUPE_LIBAV(avformat_find_stream_info);
  TROUPE_LIBAV(av_read_frame);
  TROUPE_LIBAV(av_stream_get_side_data);
  TROUPE_LIBAV(sws_getContext);
  TROUPE_LIBAV(sws_freeContext);
  TROUPE_LIBAV(sws_getCoefficients);
  TROUPE_LIBAV(sws_setColorspaceDetails);
  TROUPE_LIBAV(sws_scale);
#undef TROUPE_LIBAV
};

/// Opens the libraries at the first call; they stay open. unsupported when one is not installed.
Status open_libav();

/// Requires that open_libav() was ok.
const Libav& libav();

}  // namespace troupe::media
