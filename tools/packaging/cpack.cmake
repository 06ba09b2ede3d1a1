# For cpack --config, which tools/package calls: packs a tree that is installed already. From the environment: PACKAGE_TREE (the tree),
# PACKAGE_OUT (where the package goes), PACKAGE_VERSION, PACKAGE_RELEASE (the distribution, and +cuda with GPU code), PACKAGE_VARIANT
# (what follows the name of a tarball).
set(tools "${CMAKE_CURRENT_LIST_DIR}")
set(CPACK_PACKAGE_NAME troupe)
set(CPACK_PACKAGE_VERSION "$ENV{PACKAGE_VERSION}")
set(CPACK_PACKAGE_VENDOR "Troupe")
set(CPACK_PACKAGE_CONTACT "Troupe's maintainers <troupe@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server for ERNIE-4.5 models over an OpenAI-style HTTP API")
set(CPACK_PACKAGE_DESCRIPTION "One native program: a front for clients, an engine of actors that decides every step,
and workers that run the model on NVIDIA GPUs or on the CPU.")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{PACKAGE_TREE}" ".")
set(CPACK_INSTALL_CMAKE_PROJECTS)
set(CPACK_PACKAGE_DIRECTORY "$ENV{PACKAGE_OUT}")
set(CPACK_OUTPUT_FILE_PREFIX "$ENV{PACKAGE_OUT}")
set(CPACK_STRIP_FILES OFF)  # stripped when it was installed

if("$ENV{PACKAGE_FORM}" STREQUAL TGZ)
  set(CPACK_PACKAGE_FILE_NAME "troupe-$ENV{PACKAGE_VERSION}-$ENV{PACKAGE_VARIANT}")
  set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_SET_DESTDIR OFF)
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
else()
  set(CPACK_PACKAGE_FILE_NAME troupe)  # the folder that cpack works in
  set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY OFF)
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_RELEASE "$ENV{PACKAGE_RELEASE}")
  set(CPACK_DEBIAN_PACKAGE_SECTION net)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # what the program is linked with, in the versions of this machine
  # Certificates of the hubs; videos are read where the two libraries are.
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "$ENV{PACKAGE_SUGGESTS}")
  set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${tools}/debian/postinst;${tools}/debian/prerm;${tools}/debian/postrm")
  set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
endif()
