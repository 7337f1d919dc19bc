package api

import (
	"context"
	"fmt"
	"net/http"

	"berth/internal/fault"
	"berth/internal/pki"
)

// hostAct is what a request that changes something is, where a host sends it for one of its
// callers. The zero value is the strictest.
type hostAct uint8

const (
	// actOperate is an operator's act: start a move, change one on its way.
	actOperate hostAct = iota
	// actAbort gives up a move before its point of no return.
	actAbort
	// actConfirm gives up what the source keeps to go back.
	actConfirm
	// actRevert takes the instance back from the destination.
	actRevert
	// actHeal corrects what is provable, as the asked host does by itself within an interval.
	actHeal
	hostActs
)

// passRow is a row of the table; the first that matches decides.
type passRow struct {
	act      []hostAct
	relation []relation
	answer   answer
}

// passTable says what the asked host takes from another host without the right relay. Relation is
// what the sender is to the migration, by the asked host's records. A party is let do only what
// it can do to that instance without asking:
//
//	abort    either party can make the move fail: it answers no more of its steps
//	confirm  the source can remove its own files; a destination would have the source remove the
//	         last good copy of what the destination may have damaged
//	revert   the destination can lose what it has; a source would take back what it has given
//
// Everything else needs an operator, or the right relay.
func passTable() []passRow {
	source, destination := []relation{relationSource}, []relation{relationDestination}
	return []passRow{
		{act: []hostAct{actHeal}, answer: yes},
		{act: []hostAct{actAbort, actConfirm}, relation: source, answer: yes},
		{act: []hostAct{actAbort, actRevert}, relation: destination, answer: yes},
		{answer: byRight},
	}
}

// decidePass looks a request up.
func decidePass(act hostAct, by relation) answer {
	for _, row := range passTable() {
		if has(row.act, act) && has(row.relation, by) {
			return row.answer
		}
	}
	return no
}

// passWords are the same for documents.
var passWords = map[hostAct]string{
	actOperate: "Of hosts to those with the right relay.",
	actAbort:   "Of hosts to the source and the destination of the migration, by what is recorded here, and to those with the right relay.",
	actConfirm: "Of hosts to the source of the migration, by what is recorded here, and to those with the right relay.",
	actRevert:  "Of hosts to the destination of the migration, by what is recorded here, and to those with the right relay.",
	actHeal:    "Of hosts to each, for the host that is asked alone.",
}

// operators' acts that hosts may send too.
func (r route) asAct(a hostAct) route { r.act = a; return r }

// fromHost reports whether a row is an act of people's that the table lets hosts send: passTable
// decides which.
func (r route) fromHost() bool {
	return r.changes() && r.party == nil && r.allow&callerHost != 0 && r.allow&operators != 0
}

// ReasonAskThere is the reason's code of an operator's act that another host has passed on without
// the right to: Want is the host to ask.
const ReasonAskThere = "ask_there"

// passedOn refuses what a host sends in the place of an operator, unless passTable or the right
// relay allows it; nil for every other caller and row. It may ask libvirt for an instance's name.
func (s *Server) passedOn(r *http.Request, rt route) error {
	id := callerOf(r.Context())
	if id.caller != callerHost || !rt.fromHost() {
		return nil
	}
	by := relationNone
	if rt.act == actAbort || rt.act == actConfirm || rt.act == actRevert {
		by = s.relationTo(r.Context(), r.PathValue("migration"), id.name)
	}
	if decidePass(rt.act, by) == yes {
		return nil
	}
	if given, _ := id.has(pki.RightRelay, nil); given != "" {
		s.opt.Logger.Info("right used", "right", string(pki.RightRelay), "by", id.words(), "given_by", given, "doing", rt.words(), "asker", id.asker, "request", id.request)
		return nil
	}
	for_ := "for nobody it names"
	if id.asker != "" {
		for_ = "for " + id.asker + ", by its own account"
	}
	here := s.opt.Name
	return fault.Refuse(fault.Forbidden, rt.words(), fault.Reason{
		Code: ReasonAskThere, Want: here, Have: id.words(),
		Message: fmt.Sprintf("host %s asks this %s; host %s takes it from operators, from its own socket, and from hosts with the right relay", id.name, for_, here),
		Change: "run the command on " + here + ", or ask it with an operator's certificate: --connect " + here + " --cert FILE; or let " + id.name +
			" pass requests on: [rights] relay = [\"host:" + id.name + "\"] on " + here + ", and reload its agent",
	})
}

// relationTo says what a host is to a migration that is named by its uuid, or by its instance's
// name or uuid.
func (s *Server) relationTo(ctx context.Context, ref, host string) relation {
	var b Between
	var known bool
	if s.svc.Moves != nil {
		b, known = s.svc.Moves(ctx, ref)
	} else {
		b, known = s.svc.Parties.Parties(ref, "")
	}
	_, by := relate(b, known, host)
	return by
}
