# cmake -DFOLDER=… -DOUT=… -DFILES=a.html;b.js -P embed_pages.cmake: writes the files as a C++ source that defines
# http::pages(). A file is known by its contents' SHA-256, of which half makes the ETag.
set(arrays)
set(rows)
foreach(name ${FILES})
  file(READ ${FOLDER}/${name} bytes HEX)
  file(SHA256 ${FOLDER}/${name} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(REGEX REPLACE "(................................)" "\\1\n    " bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${name} id)
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
  string(APPEND arrays "constexpr unsigned char k_${id}[] = {\n    ${bytes}\n};\n")
  string(APPEND rows "    {\"${path}\", Output::Content::${content}, bytes_of(k_${id}), \"\\\"${hash}\\\"\"},\n")
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
