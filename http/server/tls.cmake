# TLS over a socket, for the server and for the clients.
troupe_module(http_tls
  HEADERS server/tls_session.h
  SOURCES server/tls_session.cpp
  DEPS troupe::base ${SSL} ${CRYPTO})
