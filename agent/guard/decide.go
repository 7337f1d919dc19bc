package guard

import "berth/internal/fault"

// Operation is libvirt's word for what it is about to do to a guest
// (https://libvirt.org/hooks.html).
type Operation string

// The operations that can be refused; libvirt sends each with the
// sub-operation "begin".
const (
	Migrate Operation = "migrate" // a guest arrives; what the hook prints replaces its document
	Restore Operation = "restore" // a saved guest is about to be started; prepare and start follow
	Prepare Operation = "prepare" // before anything is labelled or allocated, for starts and arrivals alike
	Start   Operation = "start"   // before QEMU runs, for starts and arrivals alike
)

// Call is one question of the hook.
type Call struct {
	Guest        string    `json:"guest"` // its name
	Operation    Operation `json:"operation"`
	SubOperation string    `json:"sub_operation"`
	DomainXML    string    `json:"domain_xml"`
	// Defined is the migration that the guest's definition on this host names; empty
	// for none. libvirt writes the definition of a guest that arrives live when it has
	// come; of one that comes shut off (virsh migrate --offline) it is all there is.
	Defined string `json:"defined,omitempty"`
}

// Watched reports whether the answer to a call can be no. A failing reconnect
// makes libvirt kill a running guest, and a failing stopped or release leaves
// one behind that is half taken down: they are never looked at.
func (c Call) Watched() bool {
	switch c.Operation {
	case Migrate, Restore, Prepare, Start:
		return c.SubOperation == "begin"
	}
	return false
}

// Answer is what the agent says to a call.
type Answer struct {
	Allow bool `json:"allow"`
	// DomainXML replaces the arriving guest's document; empty leaves it as it is.
	DomainXML string         `json:"domain_xml,omitempty"`
	Message   string         `json:"message,omitempty"` // what was refused
	Reasons   []fault.Reason `json:"reasons"`           // why; empty where it is allowed
}

// Arrival is a claim for a guest that comes from another host.
type Arrival struct {
	Migration string
	// Foreign: the migration is not Berth's own; it was claimed on arrival or by
	// `berth external`.
	Foreign bool
	// Cold: the guest comes while it is off, and no stream brings it.
	Cold bool
	// Undone: its undo has begun, and nothing may come any more.
	Undone bool
	// Pending: the host is not prepared for it yet.
	Pending bool
	// Begun: `migrate begin` of this very document was let in, a moment ago.
	Begun bool
}

// Facts are what the agent decides by: its mode, the document, and the ledger.
type Facts struct {
	Operation Operation
	Observing bool // mode observe
	Stranger  bool // this machine's identity is not believed: its ledger may be a copy

	Marked       bool   // the document has Berth's metadata
	DocMigration string // the migration that the metadata names
	Defined      bool   // its definition here names that migration too

	Known     bool   // the ledger has the instance
	TokenHere bool   // and its token is here
	Holder    string // else where it went; may be empty
	Claimed   bool   // it has a claim of its own here
	Leaving   string // the migration that it leaves by, or is prepared to; empty for none
	Left      bool   // it has left by a migration that Berth did not conduct
	// Unconfirmed is why this host does not know yet, in this boot, that the guest is its own;
	// empty where it does.
	Unconfirmed string
	// Alive are the reasons for which it is not off, whatever libvirt says: a process of it that
	// libvirtd has lost lives here. Asked for starts alone.
	Alive   []fault.Reason
	Arrival *Arrival
}

// Decision is what is to be done about a call.
type Decision int

// The decisions.
const (
	Refuse Decision = iota
	Allow
	AllowAndAdopt // an unmanaged guest starts: let it, then look at it
	AllowArrival  // the arrival that a claim waits for: its document is the claim's already
	ClaimArrival  // an arrival that a foreign claim waits for, or none: claim, rewrite
)

// Decide is the table. The rows, the first that holds counts:
//
//	mode      operation  ledger                                    answer
//	observe   any        any                                       allow, print nothing
//	manage    arrival    identity not believed                     refuse
//	manage    arrival    token here                                refuse: it would be a second copy
//	manage    arrival    claim of a guest that comes cold          refuse: it comes by no stream
//	manage    arrival    claim, its undo has begun                 refuse
//	manage    arrival    claim of Berth's, still pending           refuse
//	manage    arrival    claim of Berth's, document names it       allow
//	manage    arrival    claim of Berth's, document does not       refuse
//	manage    arrival    foreign claim, or none                    claim and rewrite, or refuse with the fit's reasons
//	manage    start      arrival begun, defined by it              refuse: it came shut off, and a person starts it
//	manage    start      arrival begun                             allow: libvirt prepares what `migrate begin` let in
//	manage    start      claim of an arrival, not begun            refuse: the guest runs elsewhere
//	manage    start      managed, identity not believed            refuse
//	manage    start      token here, leaving                       refuse: its memory may be elsewhere by now
//	manage    start      token here, it has left by hand           refuse: it runs elsewhere
//	manage    start      token here, no claim                      refuse
//	manage    start      token here, not confirmed in this boot    refuse: it may have been evacuated
//	manage    start      token here, a process of it lives         refuse: libvirtd has lost it
//	manage    start      token here                                allow
//	manage    start      known, token elsewhere                    refuse
//	manage    start      unknown, with Berth's metadata            refuse: the token is somewhere else, or lost
//	manage    start      unknown, without                          allow and adopt
//
// "start" is prepare, start and restore alike.
func Decide(f Facts) (Decision, []fault.Reason) {
	no := func(code, message, change string) (Decision, []fault.Reason) {
		return Refuse, []fault.Reason{{Code: code, Message: message, Change: change}}
	}
	a := f.Arrival
	switch {
	case f.Observing:
		return Allow, nil
	case f.Operation == Migrate && f.Stranger:
		return no("host_identity", "this host's identity is not believed, so it takes no guests", "see berth status")
	case f.Operation == Migrate && f.Known && f.TokenHere && f.Left:
		return no("left_behind", "the guest's ownership token is still on this host, which it left by a migration that Berth did not conduct", "virsh undefine DOMAIN here, then let it come back")
	case f.Operation == Migrate && f.Known && f.TokenHere:
		return no("instance_lives_here", "the guest's ownership token is on this very host: what arrives would be a second copy", "look where the guest runs: berth instance show INSTANCE")
	case f.Operation == Migrate && a != nil && a.Cold:
		return no("other_migration", "migration "+a.Migration+" brings this guest while it is off, and this stream is not that migration's", "wait for that migration's end, or abort it")
	case f.Operation == Migrate && a != nil && a.Undone:
		return no("undone", "migration "+a.Migration+" of this guest is being undone", "start another when it is over")
	case f.Operation == Migrate && a != nil && !a.Foreign && a.Pending:
		return no("not_prepared", "this host is not prepared yet for migration "+a.Migration+", which is to bring this guest", "wait for that migration's own stream, or abort it")
	case f.Operation == Migrate && a != nil && !a.Foreign && a.Migration == f.DocMigration:
		return AllowArrival, nil
	case f.Operation == Migrate && a != nil && !a.Foreign:
		return no("other_migration", "migration "+a.Migration+" has a claim for this guest, and this stream is not that migration's", "wait for that migration's end, or abort it")
	case f.Operation == Migrate:
		return ClaimArrival, nil

	case a != nil && f.Defined:
		return no("came_shut_off", "its definition came here by an offline migration, and its ownership token did not", "start it where it lives; where no host knows it any more, berth instance adopt INSTANCE here")
	case a != nil && a.Begun && !a.Undone && !a.Pending:
		return Allow, nil
	case a != nil:
		return no("arriving", "the guest is to arrive here by migration "+a.Migration+", so it lives on another host", "wait for that migration's end, or abort it")
	case f.Stranger && (f.Known || f.Marked):
		return no("host_identity", "this host's identity is not believed, so it may own no guest", "see berth status")
	case f.Known && f.TokenHere && f.Leaving != "":
		return no("moving", "the guest is moving by migration "+f.Leaving, "wait for it, or berth migration abort "+f.Leaving)
	case f.Known && f.TokenHere && f.Left:
		return refuseLeft(no)
	case f.Known && f.TokenHere && !f.Claimed:
		return no("no_claim", "the guest has no claim on this host", "berth instance adopt INSTANCE")
	case f.Known && f.TokenHere && f.Unconfirmed != "":
		return refuseUnconfirmed(no, f.Unconfirmed)
	case f.Known && f.TokenHere && len(f.Alive) > 0:
		return Refuse, f.Alive
	case f.Known && f.TokenHere:
		return Allow, nil
	case f.Known:
		where := f.Holder
		if where == "" {
			where = "another host"
		}
		return no("token_elsewhere", "its ownership token went to "+where, "start it there")
	case f.Marked:
		return no("no_token", "Berth manages this guest, and its ownership token is not on this host", "start it where it lives; where no host knows it any more, berth instance adopt INSTANCE here")
	}
	return AllowAndAdopt, nil
}

// refuseLeft is the same with and without an agent.
func refuseLeft(no func(code, message, change string) (Decision, []fault.Reason)) (Decision, []fault.Reason) {
	return no("has_left", "it left by a migration that Berth did not conduct, so it runs on another host", "manage it there; if that copy is no more, berth instance adopt INSTANCE here, then start it")
}

// refuseUnconfirmed is the same with and without an agent.
func refuseUnconfirmed(no func(code, message, change string) (Decision, []fault.Reason), why string) (Decision, []fault.Reason) {
	return no("not_confirmed", "whether the guest is this host's is not confirmed: "+why,
		`bring the fleet's records back (berth status), or, where it surely runs nowhere else, berth instance start INSTANCE --force-owner --reason "how you know"`)
}
