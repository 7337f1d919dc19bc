package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"berth/internal/fault"
	"berth/internal/pki"
)

// Headers by which a host says, of a request that it passes on, who has asked it and which
// rights he has there. They are read of hosts alone, and written anew by each.
const (
	headerAsker       = "Berth-Asker"
	headerAskerRights = "Berth-Asker-Rights"
)

// Rights are what this host's configuration gives, beside certificates.
type Rights interface {
	// Operates says whether [rights] operate lets somebody change things whom his certificate or
	// the socket has let in; true for everybody where the list is empty. Not asked of hosts.
	Operates(who Holder) bool
	// Given is the entry that gives a right; empty where none does. It blocks on nothing.
	Given(right pki.Right, who Holder) (entry string)
	// UserName is a user's name for messages and logs; empty where nobody knows it.
	UserName(uid uint32) string
}

// Holder is a caller as lists of rights know him: one of the three.
type Holder struct {
	Operator string // name in an operator's certificate
	Host     string // provider's name
	Local    *LocalUser
}

// LocalUser is who has connected to the unix socket, by the kernel's word.
type LocalUser struct {
	UID    uint32
	Groups []uint32
}

// Deed is what a right is wanted for.
type Deed struct {
	Doing     string // "resize web between hosts that share nothing"
	Migration string // uuid; empty before there is one
	Instance  string // uuid
	// Parties are the two hosts of a move that is there. What somebody has asked one of
	// them, and it passes on, is believed of it: each has a half of the guest in its hands.
	Parties []string
}

// Demand decides whether whoever sent the request of ctx has a right, by
//
//	who asks            has share-nothing by                           has conduct by
//	the local socket    this host's list: his user, or one of his      never
//	                    groups
//	an operator         his certificate, or this host's list           never
//	a host              what it says of who has asked it, where it is   its certificate, or this
//	                    a host of the move, or has the right relay     host's list
//
// and nobody else by anything, root included. A host that passes a request on can so give
// nobody more than it could do itself: it is the source or the destination, or is trusted to pass
// requests on (see passTable, which decides first). The use of a right is written to the log; fault.Forbidden says what lacks, who has
// asked, and both ways to give it.
func Demand(ctx context.Context, right pki.Right, d Deed) error {
	by, err := may(ctx, right, d)
	if err != nil {
		return err
	}
	id := callerOf(ctx)
	attrs := []any{"right", string(right), "by", id.words(), "given_by", by, "doing", d.Doing, "request", id.request}
	if d.Instance != "" {
		attrs = append(attrs, "instance", d.Instance)
	}
	if d.Migration != "" {
		attrs = append(attrs, "migration", d.Migration)
	}
	id.server.opt.Logger.Info("right used", attrs...)
	return nil
}

// May is Demand for a question: nothing is done, and nothing is written to the log.
func May(ctx context.Context, right pki.Right, d Deed) error {
	_, err := may(ctx, right, d)
	return err
}

func may(ctx context.Context, right pki.Right, d Deed) (by string, err error) {
	by, refused := callerOf(ctx).has(right, d.Parties)
	if refused != nil {
		return "", fault.Refuse(fault.Forbidden, d.Doing, *refused)
	}
	return by, nil
}

// has decides, and says what gives the right or why it lacks.
func (id identity) has(right pki.Right, parties []string) (by string, refused *fault.Reason) {
	lacks := func(message, change string) (string, *fault.Reason) {
		return "", &fault.Reason{Code: "right_missing", Message: message, Want: string(right), Have: id.words(), Change: change}
	}
	if id.server == nil {
		return lacks("nobody is known to have asked", "ask the agent, by its socket or with a certificate")
	}
	if right == pki.RightShareNothing && id.caller == callerHost {
		return id.vouched(parties)
	}
	role := map[caller]pki.Role{callerOperator: pki.RoleOperator, callerHost: pki.RoleHost}[id.caller]
	if id.leaf != nil && right.Counts(role) && pki.Gives(id.leaf, right) {
		return "certificate", nil
	}
	var entry string
	if given := id.server.svc.Rights; given != nil {
		entry = given.Given(right, id.holder())
	}
	if entry != "" {
		return "[rights] " + entry, nil
	}
	host := id.server.opt.Name
	switch {
	case right.Counts(pki.RoleHost) && id.caller != callerHost:
		return lacks("the right "+string(right)+" is a host's, and "+id.words()+" has asked", "have a host's agent ask that has it")
	case right == pki.RightRelay:
		return lacks("host "+id.name+" has not the right relay on "+host+": its agent may not pass on to this one what its own callers ask",
			"ask "+host+" itself; or [rights] relay = [\"host:"+id.name+"\"] on "+host+", and reload its agent")
	case right == pki.RightConduct:
		return lacks("host "+id.name+" has not the right conduct on "+host+": its agent may not conduct moves between this host and others",
			"berth pki host "+id.name+" --right conduct, and give it that certificate; or [rights] conduct = [\"host:"+id.name+"\"] on "+host+", and reload its agent")
	}
	message, way := id.words()+" has not the right share-nothing on "+host, "berth pki operator NAME --right share-nothing, and ask with --connect "+host+" --cert FILE"
	if id.caller == callerOperator {
		way = "berth pki operator " + id.name + " --right share-nothing, and ask with that certificate"
		if len(pki.RightsOf(id.leaf)) > 0 {
			message += "; what the certificate gives is " + rightsWords(pki.RightsOf(id.leaf))
		}
	}
	if id.caller == callerLocal && id.user == nil {
		return lacks("the kernel does not say who has connected to the socket of "+host+", so that he has no right", way)
	}
	return lacks(message, way+"; or [rights] share_nothing = [\""+id.words()+"\"] on "+host+", and reload its agent")
}

// vouched decides by what a host says of who has asked it.
func (id identity) vouched(parties []string) (by string, refused *fault.Reason) {
	const right = string(pki.RightShareNothing)
	host := id.server.opt.Name
	relays, _ := id.has(pki.RightRelay, nil)
	switch {
	case id.asker == "":
		return "", &fault.Reason{
			Code: "right_missing", Message: "host " + id.name + " asks, and does not say for whom: the right share-nothing is an operator's or a local user's, never a host's", Want: right, Have: "host " + id.name,
			Change: "ask " + host + " itself: berth --connect " + host + " --cert FILE, with an operator's certificate (berth pki operator NAME --right share-nothing); an older berth on " + id.name + " does not say it",
		}
	case !slices.Contains(parties, id.name) && relays == "":
		return "", &fault.Reason{
			Code: "right_missing", Message: "host " + id.name + " passes on what " + id.asker + " has asked, and is not believed: it is no host of this move, and has not the right relay", Want: right, Have: id.asker,
			Change: "ask " + host + " itself: berth --connect " + host + " --cert FILE, with an operator's certificate (berth pki operator NAME --right share-nothing); or give host " + id.name +
				" the right relay on " + host + ": [rights] relay = [\"host:" + id.name + "\"]",
		}
	case !slices.Contains(id.askerRights, right):
		return "", &fault.Reason{
			Code: "right_missing", Message: id.asker + " has not the right share-nothing on " + id.name + ", which passes the request on", Want: right, Have: id.asker,
			Change: "berth pki operator NAME --right share-nothing, and ask with that certificate; or [rights] share_nothing = [\"" + id.asker + "\"] on " + id.name + ", and reload its agent",
		}
	}
	return "host " + id.name + ", for " + id.asker, nil
}

// holder is the caller as lists know him.
func (id identity) holder() Holder {
	switch id.caller {
	case callerOperator:
		return Holder{Operator: id.name}
	case callerHost:
		return Holder{Host: id.name}
	case callerReader:
		return Holder{} // no list has him
	}
	return Holder{Local: id.user}
}

// refused says why a caller may not ask for a route; nil where he may. Who is let in and is no
// host may look at all that operators may; to change something
//
//	a reader's certificate      never
//	an operator's               where [rights] operate has him, or nobody
//	the local socket            root; others where [rights] operate has them, or nobody
func (id identity) refused(rt route) *fault.Reason {
	allow := rt.allow
	if allow&callerOperator != 0 && !rt.changes() {
		allow |= callerReader
	}
	if allow&id.caller == 0 {
		change := "use the local socket or an operator's certificate"
		if rt.allow == hostsOnly {
			change = "this is for other hosts' agents alone"
		}
		return &fault.Reason{Code: "caller", Message: "a caller by " + id.caller.String() + " may not do this", Have: id.caller.String(), Change: change}
	}
	given := id.server.svc.Rights
	if !rt.changes() || id.caller == callerHost || given == nil || id.user != nil && id.user.UID == 0 || given.Operates(id.holder()) {
		return nil
	}
	host := id.server.opt.Name
	return &fault.Reason{
		Code: "reads_only", Message: id.words() + " may look on " + host + ", and change nothing: [rights] operate names others", Want: "operate", Have: id.words(),
		Change: "[rights] operate = [\"" + id.words() + "\"] on " + host + " beside those that are there, and reload its agent; or ask as one of them",
	}
}

// words are the caller as lists of rights spell him.
func (id identity) words() string {
	switch id.caller {
	case callerOperator:
		return "operator:" + id.name
	case callerReader:
		return "reader:" + id.name
	case callerHost:
		return "host:" + id.name
	case callerLocal:
		return "user:" + id.userName()
	}
	return "nobody"
}

// userName is the local user's name; his number where nobody knows it.
func (id identity) userName() string {
	if id.user == nil {
		return "unknown"
	}
	if given := id.server.svc.Rights; given != nil {
		if name := given.UserName(id.user.UID); name != "" {
			return name
		}
	}
	return strconv.FormatUint(uint64(id.user.UID), 10)
}

func rightsWords(rights []pki.Right) string {
	var out []string
	for _, r := range rights {
		out = append(out, string(r))
	}
	return strings.Join(out, ", ")
}

// tellAsker writes into a request to another host who has sent this one the request of
// ctx, and which rights he has here; and takes away what somebody else has written there.
func tellAsker(ctx context.Context, h http.Header) {
	h.Del(headerAsker)
	h.Del(headerAskerRights)
	id := callerOf(ctx)
	if id.server == nil || id.caller == callerHost {
		return // a host asks for itself, and what it has been told of others is not told on
	}
	h.Set(headerAsker, printable(id.words()))
	if by, _ := id.has(pki.RightShareNothing, nil); by != "" {
		h.Set(headerAskerRights, string(pki.RightShareNothing))
	}
}

// heardAsker reads the same. The caller is a host.
func (id *identity) heardAsker(h http.Header) {
	id.asker = printable(h.Get(headerAsker))
	for r := range strings.SplitSeq(h.Get(headerAskerRights), ",") {
		if r = strings.TrimSpace(r); r != "" && len(id.askerRights) < 16 {
			id.askerRights = append(id.askerRights, r)
		}
	}
}

// printable keeps a name to what headers and logs can have.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 300)]
}
