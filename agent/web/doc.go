// Package web is the agent's page to look at: what this host has and who holds it, its guests,
// the moves that are on their way, those that are over, and what is wrong with what to do
// about it. It only reads: no request changes anything, and there is no form on it.
//
// It asks nobody but the Look that it is given, which answers from memory, at most once a
// second however many look on, and not at all while nobody does.
//
// # How it is made
//
// The page is whole without a script: html/template writes it, in sections. The script is a
// page of plain JavaScript that has each section replaced when its text has changed, by
// server-sent events. Nothing is fetched from elsewhere, so that a host without a way out
// shows it, and the policy of what a browser may run (Content-Security-Policy) names this
// server alone: what a guest is called can be no script, twice.
//
// # Who may look
//
// That is decided by the listener that the agent gives it (Serve): behind a unix socket whoever
// may open its file; on the loopback address everybody on the machine, if his browser came by
// an address of the machine's own and not by a name that somebody else's server gave it;
// elsewhere whoever has an operator's certificate, or a reader's.
package web
