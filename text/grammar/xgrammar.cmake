# The C++ core of xgrammar (Apache 2.0), from the sources that tools/setup puts into build/xgrammar. It is compiled on its
# own terms: C++17, optimised in every build type, no warnings, no sanitizer. What it logs goes to text/grammar/notices.
set(TROUPE_XGRAMMAR ${PROJECT_SOURCE_DIR}/build/xgrammar CACHE PATH "The unpacked sources of xgrammar")
if(NOT EXISTS ${TROUPE_XGRAMMAR}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "There are no sources of xgrammar in ${TROUPE_XGRAMMAR}: run tools/setup")
endif()
file(GLOB xgrammar_sources ${TROUPE_XGRAMMAR}/cpp/*.cc ${TROUPE_XGRAMMAR}/cpp/converter_ext/*.cc
     ${TROUPE_XGRAMMAR}/cpp/support/*.cc)
add_library(troupe_xgrammar STATIC ${xgrammar_sources})
target_include_directories(troupe_xgrammar SYSTEM PUBLIC ${TROUPE_XGRAMMAR}/include
                           ${TROUPE_XGRAMMAR}/3rdparty/picojson ${TROUPE_XGRAMMAR}/3rdparty/dlpack/include)
target_compile_definitions(troupe_xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
                           XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
set_target_properties(troupe_xgrammar PROPERTIES CXX_STANDARD 17 COMPILE_OPTIONS "-O2;-w"
                      VERIFY_INTERFACE_HEADER_SETS OFF EXPORT_COMPILE_COMMANDS OFF)
target_link_libraries(troupe_xgrammar PUBLIC Threads::Threads)
