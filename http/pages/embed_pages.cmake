# cmake -DFILES=a/x.html;b/y.js -DOUT=… -P embed_pages.cmake: writes the files, by their paths, as a C++ source that defines
# http::pages(). A file is known by its contents' SHA-256, of which half makes the ETag. Each is there as it is and, where
# that is smaller, compressed.
function(append_array id hex)
  string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  set(arrays "${arrays}constexpr unsigned char k_${id}[] = {\n    ${hex}\n};\n" PARENT_SCOPE)
endfunction()
set(arrays)
set(rows)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} bytes HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(MAKE_C_IDENTIFIER ${name} id)
  append_array(${id} "${bytes}")
  file(ARCHIVE_CREATE OUTPUT ${OUT}.gz PATHS ${file} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
  file(READ ${OUT}.gz packed HEX)
  file(REMOVE ${OUT}.gz)
  string(LENGTH "${bytes}" bytes_length)
  string(LENGTH "${packed}" packed_length)
  set(gzip "{}")
  if(packed_length LESS bytes_length)
    # Bytes 4 to 7 of a gzip file are the time at which it was made: 0, so that the same files give the same source.
    string(SUBSTRING "${packed}" 0 8 packed_begin)
    string(SUBSTRING "${packed}" 16 -1 packed_end)
    append_array(${id}_gzip "${packed_begin}00000000${packed_end}")
    set(gzip "bytes_of(k_${id}_gzip)")
  endif()
  get_filename_component(type ${name} LAST_EXT)
  if(type STREQUAL .html)
    get_filename_component(path ${name} NAME_WE)
    if(path STREQUAL chat)
      set(path "")
    endif()
    set(path "/${path}")
    set(content html)
  else()
    set(path "/pages/${name}")
    if(type STREQUAL .js)
      set(content script)
    elseif(type STREQUAL .css)
      set(content style)
    elseif(type STREQUAL .svg)
      set(content svg)
    else()
      message(FATAL_ERROR "${name}: there is no content type for ${type}")
    endif()
  endif()
  string(APPEND rows "    {\"${path}\", Output::Content::${content}, bytes_of(k_${id}), ${gzip}, \"\\\"${hash}\\\"\"},\n")
endforeach()
file(WRITE ${OUT}.part "// Written by http/pages/embed_pages.cmake.
#include \"http/pages/pages.h\"

namespace troupe::http {
namespace {

${arrays}
template <std::size_t N>
std::string_view bytes_of(const unsigned char (&bytes)[N]) {
  return {reinterpret_cast<const char*>(bytes), N};
}

}  // namespace

std::span<const Page> pages() {
  static const Page kPages[] = {
${rows}  };
  return kPages;
}

}  // namespace troupe::http
")
file(COPY_FILE ${OUT}.part ${OUT} ONLY_IF_DIFFERENT)
file(REMOVE ${OUT}.part)
