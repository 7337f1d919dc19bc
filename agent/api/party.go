package api

import (
	"context"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
)

// partyWords say for the API's document which hosts may ask.
var partyWords = map[migration.Access]string{
	migration.AccessConductor:   "Of them to the one that conducts the migration, by what is recorded here.",
	migration.AccessDestination: "Of them to the one that conducts the migration, by what is recorded here; where nothing is, to the source that it names, to one with the right conduct, or of an evacuation to any.",
	migration.AccessShipment:    "Of them to the one that conducts the migration, by what is recorded here, and to its source.",
	migration.AccessLook:        "Of them to the one that conducts the migration, by what is recorded here; where nothing is, to one with the right conduct.",
	migration.AccessBegin:       "Of them to one with the right conduct, which the context names as the conductor.",
	migration.AccessForget:      "Of them to the one that conducts the migration, by what is recorded here; where nothing is, to one with the right conduct.",
}

// recorded is what the asked host has recorded of the migration.
type recorded uint8

const (
	recordedNothing  recorded = iota
	recordedOrdinary          // its source conducts it
	recordedApart             // a third host does
	recordeds
)

// relation is what the asking host is to it, by that record.
type relation uint8

const (
	relationNone relation = iota
	relationSource
	relationDestination
	relationConductor // a third host; of an ordinary move the source is called source
	relations
)

// naming is whom the arguments of the verb name.
type naming uint8

const (
	// namesNobody: there is nobody to name.
	namesNobody naming = iota
	// namesCaller: as the source.
	namesCaller
	// namesConductor: another host as the source, and the caller as the conductor, where
	// there is one to name.
	namesConductor
	// namesEvacuator: a dead host as the source, and the caller as who takes a guest from it.
	namesEvacuator
	// namesOther: others alone, or another source than is recorded.
	namesOther
	namings
)

// answer is what is said to who asks.
type answer uint8

const (
	no answer = iota
	yes
	byRight // with the right conduct
)

// partyRow is a row of the table; the first that matches decides.
type partyRow struct {
	side     []migration.Access
	recorded []recorded
	relation []relation
	naming   []naming
	answer   answer
}

// partyTable says who may ask which verb: by what is recorded here the host alone that
// conducts the move, and where nothing is recorded yet one that may conduct. An empty
// column matches all.
func partyTable() []partyRow {
	ordinary, apart, nothing := []recorded{recordedOrdinary}, []recorded{recordedApart}, []recorded{recordedNothing}
	source, conductor := []relation{relationSource}, []relation{relationConductor}
	return []partyRow{
		// Nobody asks in the name of a source that is not the one on record.
		{recorded: []recorded{recordedOrdinary, recordedApart}, naming: []naming{namesOther}, answer: no},
		// A source that conducts needs no right, and names no other.
		{recorded: ordinary, relation: source, naming: []naming{namesConductor, namesEvacuator}, answer: no},
		{recorded: ordinary, relation: source, answer: yes},
		{recorded: ordinary, answer: no},
		// A third host that is on record needs it no more: who has begun can end.
		{recorded: apart, relation: conductor, naming: []naming{namesNobody, namesConductor}, answer: yes},
		{side: []migration.Access{migration.AccessDestination}, recorded: apart, relation: conductor, naming: []naming{namesEvacuator}, answer: yes},
		// The straight way: from the source's agent to this one.
		{side: []migration.Access{migration.AccessShipment}, recorded: apart, relation: source, answer: yes},
		{recorded: apart, answer: no},
		// First contact. What acts on a migration has none to act on.
		{side: []migration.Access{migration.AccessConductor}, recorded: nothing, answer: no},
		{side: []migration.Access{migration.AccessLook, migration.AccessForget}, recorded: nothing, naming: []naming{namesNobody}, answer: byRight},
		{side: []migration.Access{migration.AccessBegin}, recorded: nothing, naming: []naming{namesConductor}, answer: byRight},
		{side: []migration.Access{migration.AccessDestination, migration.AccessShipment}, recorded: nothing, naming: []naming{namesNobody, namesCaller}, answer: yes},
		{side: []migration.Access{migration.AccessDestination}, recorded: nothing, naming: []naming{namesConductor}, answer: byRight},
		// Whoever evacuates gets room at most: the guest is given by the fleet's records alone.
		{side: []migration.Access{migration.AccessDestination}, recorded: nothing, naming: []naming{namesEvacuator}, answer: yes},
		{answer: no},
	}
}

// decideParty looks a question up.
func decideParty(s migration.Access, r recorded, by relation, n naming) answer {
	for _, row := range partyTable() {
		if has(row.side, s) && has(row.recorded, r) && has(row.relation, by) && has(row.naming, n) {
			return row.answer
		}
	}
	return no
}

func has[T comparable](column []T, v T) bool {
	for _, c := range column {
		if c == v {
			return true
		}
	}
	return len(column) == 0
}

// party refuses a host verb from a host that has no business with the migration: by what
// is recorded here, never by what it says of itself alone. n is nil where the arguments
// name nobody.
func (s *Server) party(ctx context.Context, access migration.Access, id, instance string, n *migration.Named) error {
	who := callerOf(ctx).name
	conduct, err := MayAsk(s.svc.Parties, Asked{By: who, Host: s.opt.Name, Access: access, Migration: id, Instance: instance, Names: n})
	if err == nil && conduct {
		return Demand(ctx, pki.RightConduct, Deed{Doing: "let host " + who + " conduct a move of instance " + instance, Migration: id, Instance: instance})
	}
	return err
}

// Asked is an operation of a migration that one host asks of another.
type Asked struct {
	By, Host            string // who asks, by its certificate, and who is asked
	Access              migration.Access
	Migration, Instance string
	Names               *migration.Named // whom the arguments name; nil for nobody
}

// MayAsk refuses an operation, as party does, by what the asked host has recorded. It is pure but
// for p. conduct says that it is allowed to a host with the right conduct alone.
func MayAsk(p Parties, q Asked) (conduct bool, err error) {
	who, id, instance, n := q.By, q.Migration, q.Instance, q.Names
	between, known := p.Parties(id, instance)
	if id == "" && known && who != between.Source && who != between.Conductor {
		// It asks about the guest, which is on a migration; not about that one.
		known = false
	}
	if known && id != "" && instance != "" && between.Instance != "" && instance != between.Instance {
		// Who conducts the move of one guest has no business with another.
		return false, fault.Refuse(fault.Forbidden, "let host "+who+" ask a verb of migration "+id, fault.Reason{
			Code: "not_its_guest", Message: "migration " + id + " is not one of instance " + instance, Want: between.Instance, Have: instance,
		})
	}
	record, by := relate(between, known, who)
	naming := namesNobody
	if n != nil {
		if naming = as(*n, who, between, known); q.Access == migration.AccessBegin && n.Source != q.Host {
			naming = namesOther // a guest of another host is nobody's to record here
		}
	}
	switch decideParty(q.Access, record, by, naming) {
	case yes:
		return false, nil
	case byRight:
		return true, nil
	}
	doing := "let host " + who + " ask a verb of migration " + id
	if !known {
		if n != nil && naming == namesOther {
			other := n.Source
			if n.Conducts && n.Conductor != "" {
				other = n.Conductor
			}
			return false, fault.Refuse(fault.Forbidden, doing, fault.Reason{
				Code: "not_a_party", Message: "host " + who + " asks, and the request says that host " + other + " conducts it", Want: other, Have: who, Change: "ask from host " + other,
			})
		}
		return false, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "not_a_party", Message: "no migration of instance " + instance + " is recorded on this host that host " + who + " conducts", Have: who,
			Change: "begin one: on its source, or with --share-nothing on a host that may conduct it",
		})
	}
	message := "host " + who + " is not the host that this migration is recorded with as its conductor (" + between.Conductor + ")"
	if who == between.Conductor {
		message = "the request names another source than is recorded here (" + between.Source + ")"
	}
	return false, fault.Refuse(fault.Forbidden, doing, fault.Reason{
		Code: "not_a_party", Message: message, Want: between.Conductor, Have: who, Change: "ask from host " + between.Conductor,
	})
}

// MayYield refuses yield-token from a host that is neither of the two that a migration is recorded
// with here.
func MayYield(p Parties, who, id string) error {
	b, known := p.Parties(id, "")
	if !known || who != b.Source && who != b.Destination {
		return notAParty(who, id, b.Source+" and "+b.Destination)
	}
	return nil
}

// relate says what is recorded, and what a host is to it.
func relate(b Between, known bool, who string) (recorded, relation) {
	record := recordedOrdinary
	switch {
	case !known:
		return recordedNothing, relationNone
	case b.Conductor != b.Source:
		record = recordedApart
	}
	switch who {
	case b.Source:
		return record, relationSource
	case b.Conductor:
		return record, relationConductor
	case b.Destination:
		return record, relationDestination
	}
	return record, relationNone
}

// as says whom an input names, seen from who asks.
func as(n migration.Named, who string, b Between, known bool) naming {
	switch {
	case known && n.Source != b.Source && !(n.Gives && n.Source == b.Destination):
		return namesOther
	case known && n.Gives && who == b.Conductor && who != b.Source:
		return namesConductor // also where it gives the token back that it had as the destination
	case n.Evacuates && n.Source != who && (!n.Conducts || n.Conductor == who):
		return namesEvacuator
	case n.Source == who && (n.Conductor == "" || n.Conductor == who):
		return namesCaller
	case n.Source == who || n.Conducts && n.Conductor != who:
		return namesOther
	}
	return namesConductor
}
