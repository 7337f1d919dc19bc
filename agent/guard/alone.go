package guard

import "berth/internal/fault"

// Arrivals is what becomes, with no agent to ask, of an arrival that no owner
// file announces ([guard] arrivals).
type Arrivals string

// The policies.
const (
	ArrivalsRefuse Arrivals = "refuse"
	ArrivalsAllow  Arrivals = "allow"
)

// FileFacts are what the hook decides by while no agent answers.
type FileFacts struct {
	Operation Operation
	Observing bool // mode observe
	Arrivals  Arrivals

	// Readable is false for a document that cannot be understood.
	Readable     bool
	Marked       bool // Berth's metadata is in the document, or it has an owner file that is no good
	DocMigration string

	Owner   Owner // the guest's owner file
	Owned   bool  // there is a good one
	Why     string
	Silent  string // why no agent has decided
	IsBegun bool   // `migrate begin` of this very document was let in a moment ago
}

// Alone is the table without an agent. The rows, the first that holds counts:
//
//	operation  owner file            document                       answer
//	any        (mode observe)        any                            allow
//	arrival    any                   not understood                 refuse
//	arrival    arriving              names the migration, or it is
//	                                 foreign                        allow, noted
//	arrival    arriving              names another                  refuse
//	arrival    here, moving, awaits  any                            refuse
//	arrival    none, left, gone      any                            [guard] arrivals; allowed ones noted
//	start      any                   any; arrival noted             allow
//	start      arriving              any                            refuse
//	start      here                  any                            allow
//	start      moving, left, gone,   any                            refuse
//	           awaits
//	start      none, or no good      with Berth's metadata          refuse
//	start      no good               any                            refuse
//	start      none                  without                        allow, spooled for the agent
//
// An owner file proves that the guest is managed, with or without metadata:
// adopted guests have none before their first move.
func Alone(f FileFacts) (Decision, []fault.Reason) {
	no := func(code, message, change string) (Decision, []fault.Reason) {
		return Refuse, []fault.Reason{
			{Code: code, Message: message, Change: change},
			{Code: "no_agent", Message: "the agent of this host has not decided: " + f.Silent, Change: "start it (systemctl start berth), or see berth status"},
		}
	}
	switch {
	case f.Observing:
		return Allow, nil
	case f.Operation == Migrate && !f.Readable:
		return no("document", "the guest's document is not understood", "report it")
	case f.Operation == Migrate && f.Owned && f.Owner.State == OwnerArriving && (f.Owner.Foreign || f.Owner.Migration == f.DocMigration):
		return AllowArrival, nil
	case f.Operation == Migrate && f.Owned && f.Owner.State == OwnerArriving:
		return no("other_migration", "migration "+f.Owner.Migration+" has a claim for this guest, and this stream is not that migration's", "wait for that migration's end")
	case f.Operation == Migrate && f.Owned && (f.Owner.State == OwnerHere || f.Owner.State == OwnerMoving || f.Owner.State == OwnerAwaits):
		return no("instance_lives_here", "the guest's ownership token is on this very host: what arrives would be a second copy", "look where the guest runs")
	case f.Operation == Migrate && f.Arrivals == ArrivalsAllow:
		return AllowArrival, nil
	case f.Operation == Migrate:
		return no("no_claim", "no claim on this host waits for this guest", `claim it (berth external pre-live-migration), or set [guard] arrivals = "allow"`)

	case f.IsBegun:
		return Allow, nil
	case f.Owned && f.Owner.State == OwnerArriving:
		return no("arriving", "the guest is to arrive here by migration "+f.Owner.Migration+", so it lives on another host", "wait for that migration's end")
	case f.Owned && f.Owner.State == OwnerHere:
		return Allow, nil
	case f.Owned && f.Owner.State == OwnerMoving:
		return no("moving", "the guest is moving, so it may be on another host by now", "let the agent finish that")
	case f.Owned && f.Owner.State == OwnerLeft:
		return refuseLeft(no)
	case f.Owned && f.Owner.State == OwnerAwaits:
		return refuseUnconfirmed(no, "the fleet's records had not said so when its agent stopped")
	case f.Owned && f.Owner.State == OwnerGone:
		where := f.Owner.Holder
		if where == "" {
			where = "another host"
		}
		return no("token_elsewhere", "its ownership token went to "+where, "start it there")
	case f.Marked:
		return no("no_token", "Berth manages this guest, and nothing proves that its ownership token is here: "+f.Why, "let the agent settle first")
	}
	return AllowAndAdopt, nil
}
