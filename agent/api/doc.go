// Package api is the agent's HTTP API: its server, its client, and the OpenAPI
// document that is computed from the same table the server routes by.
//
// It reads and writes only connections; what a request does is done by the
// small interfaces in services.go, which the daemon fills in.
//
// # Who may ask
//
// On the local unix socket the file's owner and group decide. Over TCP both
// sides present certificates (internal/pki): a host names itself by its
// provider's name, which its certificate must cover, and may call host verbs of
// migrations that it is a party to, and read. Of what its own callers ask of another host
// it passes on an abort, and as the source a confirmation, as the destination a revert, of
// a migration between the two by the asked host's records (passTable); all else needs the
// right relay there. An operator may do everything but
// host verbs. A guest is powered off, handed over or changed for the host alone that
// conducts its move, by what the asked host has recorded; where nothing is, a third host
// needs the right conduct to begin one (partyTable). Of a guest of a dead host a claim is
// given to any host, and its token by the fleet's records alone. That a host is dead, is
// fenced, forgotten or drained, and that a guest is evacuated, is an operator's word or one
// by the socket, never a host's, and is kept with who has given it. Moves between hosts that share
// nothing are conducted for whoever has the right share-nothing (Demand): an operator,
// by certificate or by the asked host's configuration, or a user of its socket, whom the
// kernel names. A host that passes such a request on says whose it is, and is believed
// where it is a host of the move or has the right relay. To read, and to settle a move
// whose conductor is gone, nobody needs a right. A caller whose
// certificate is wrong is answered 403 with the reason, and not left with a
// broken handshake, so that both sides know why.
//
// # What a caller can rely on
//
//   - Errors are {"error":{"kind","message","reasons":[…]}}; the kinds are
//     package fault's, and the client gives them back as such.
//   - Bodies are bounded and strict: an unknown field is "invalid", and named.
//   - A host verb that was sent twice is done once at a time: the repeat joins the
//     one in progress and gets its answer. It goes on when the caller goes away.
//   - Every answer carries X-Request-Id, which the server's log has too.
package api
