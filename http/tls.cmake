# TLS over a socket, for the server and for the clients.
troupe_module(http_tls
  HEADERS tls_session.h
  SOURCES tls_session.cpp
  DEPS troupe::base ${SSL} ${CRYPTO})
