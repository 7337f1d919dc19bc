package api

import (
	"fmt"
	"slices"
	"strings"

	"berth/migration"
)

// Visitor is a caller as documents and tests tell them apart.
type Visitor uint8

// The visitors, in the order of the table's columns.
const (
	Unknown    Visitor = iota // no certificate, or another authority's
	Reader                    // a reader's certificate
	OtherHost                 // a host's, of no party to the migration
	PartyHost                 // a host's, of a party to the migration
	Operator                  // an operator's certificate
	LocalRoot                 // root at the socket
	visitorEnd                // how many there are
)

// Visitors are all of them.
func Visitors() []Visitor {
	var out []Visitor
	for v := range visitorEnd {
		out = append(out, v)
	}
	return out
}

// String is the column's head.
func (v Visitor) String() string {
	return [...]string{"unknown caller", "reader", "host, no party", "host, a party", "operator", "local root"}[v]
}

// Access says which visitors a route answers, by the table that the server decides by.
type Access struct {
	Method, Path, Name string
	// Answers has for each visitor "yes", "no", or who among them it is.
	Answers [visitorEnd]string
}

// Answered reports whether a visitor is answered; for a host that is a party, in its best role.
func (a Access) Answered(v Visitor) bool {
	return a.Answers[v] != accessNo && a.Answers[v] != accessRelay
}

// accessRelay is of hosts with a right that none has by default.
const accessYes, accessNo, accessRelay = "yes", "no", "right relay"

// ofHosts are rows for hosts whose party is not decided by partyTable or passTable, and how: of a
// host that is no party, and of one that is.
var ofHosts = map[string][2]string{
	"verb-attempt-fate": {accessNo, "destination, conductor"},
	"verb-yield-token":  {accessNo, "source, destination"},
	// By libvirt's record on the asked host that the instance has left.
	"verb-surrender": {"of an instance that left by no migration of Berth's", "of an instance that left by no migration of Berth's"},
	"known":          {"its own moves", "its own moves"},
}

// Accesses gives the access of every route, in the server's order.
func Accesses() []Access {
	var out []Access
	for _, r := range table() {
		out = append(out, r.access())
	}
	return out
}

func (r route) access() Access {
	a := Access{Method: r.method, Path: r.path, Name: r.name}
	for v := range a.Answers {
		a.Answers[v] = accessNo
	}
	set := func(v Visitor, may bool) {
		if may {
			a.Answers[v] = accessYes
		}
	}
	set(Reader, r.allow&callerOperator != 0 && !r.changes())
	set(Operator, r.allow&callerOperator != 0)
	set(LocalRoot, r.allow&callerLocal != 0)
	special, isSpecial := ofHosts[r.name]
	switch {
	case r.allow&callerHost == 0:
	case isSpecial:
		a.Answers[OtherHost], a.Answers[PartyHost] = special[0], special[1]
	case r.party != nil:
		a.Answers[PartyHost] = "conductor"
		if *r.party == migration.AccessShipment {
			a.Answers[PartyHost] = "conductor, source"
		}
	case r.fromHost():
		a.Answers[OtherHost], a.Answers[PartyHost] = accessRelay, accessRelay
		if decidePass(r.act, relationNone) == yes {
			a.Answers[OtherHost] = accessYes
		}
		var parties []string
		for _, p := range []struct {
			by   relation
			word string
		}{{relationSource, "source"}, {relationDestination, "destination"}} {
			if decidePass(r.act, p.by) == yes {
				parties = append(parties, p.word)
			}
		}
		if len(parties) > 0 {
			a.Answers[PartyHost] = strings.Join(parties, ", ")
		}
		if a.Answers[OtherHost] == accessYes {
			a.Answers[PartyHost] = accessYes
		}
	default:
		set(OtherHost, true)
		set(PartyHost, true)
	}
	return a
}

// AccessTable is Accesses as a table in Markdown; routes with the same answers share a row.
func AccessTable() string {
	var b strings.Builder
	b.WriteString("| routes |")
	for _, v := range Visitors() {
		fmt.Fprintf(&b, " %s |", v)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", int(visitorEnd)) + "\n")
	rows := Accesses()
	for len(rows) > 0 {
		same := func(a Access) bool { return a.Answers == rows[0].Answers }
		var routes []string
		for _, a := range rows {
			if same(a) {
				routes = append(routes, "`"+a.Method+" "+a.Path+"`")
			}
		}
		answers := rows[0].Answers
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(routes, "<br>"), strings.Join(answers[:], " | "))
		rows = slices.DeleteFunc(rows, func(a Access) bool { return a.Answers == answers })
	}
	return b.String()
}
