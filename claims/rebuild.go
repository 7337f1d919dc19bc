package claims

import "fmt"

// A ledger that was lost, or has lost a record, is rebuilt from what others know.
// What they say of one guest are facts, and what is done about it is a verdict; both
// are values here, and the table below is the whole of the judgement. Nothing in it
// believes one host alone where another could know better: of two that say they own
// a guest the higher epoch is right, and what cannot be decided is in doubt, which
// is counted and named, and neither started nor moved.

// Domain is what the hypervisor has of a guest, as bits: a row of the table names
// several.
type Domain uint8

// The domains.
const (
	DomainNone    Domain = 1 << iota
	DomainOff            // defined, not running
	DomainLeft           // shut off because a migration took it (or, of that, what libvirt still says)
	DomainRunning        // running, or paused by its user
	DomainHalfway        // paused by a migration, which has not brought or taken it whole
)

// Record is what the ledger still says of a guest.
type Record uint8

// The records.
const (
	RecordNone   Record = 1 << iota // none, or it is in doubt itself
	RecordHere                      // the token is here, by the last commit
	RecordBehind                    // it was here by the commit before the last, perhaps
	RecordGone                      // surrendered: what was once given away does not come back by losing records
)

// Owner's word of the other hosts.
type Others uint8

// What the other hosts say about who owns the guest.
const (
	OthersNone   Others = 1 << iota // all have answered, and none owns it
	OthersSilent                    // of those that answered none owns it, and some did not answer
	OthersLower                     // one says that it owns it, by an epoch below what is known here
	OthersOwn                       // one owns it, by an epoch that nothing here is above
)

// Way is the open move that another host tells of.
type Way uint8

// The ways.
const (
	WayNone  Way = 1 << iota
	WayIn        // on its way here; its source has not given the token away
	WayGiven     // the token was given to this host, by what its source says
	WayOut       // another host waits for it to come from here
)

// Allocated is what Placement holds for the guest.
type Allocated uint8

// The allocations.
const (
	AllocatedUnknown Allocated = 1 << iota // Placement did not answer
	AllocatedNone
	AllocatedHere
	AllocatedElsewhere
)

// Facts are what is known of one guest from the five parties.
type Facts struct {
	Domain    Domain
	Managed   bool // its document has Berth's mark, or somebody else knows it as Berth's
	Record    Record
	Others    Others
	Way       Way
	Allocated Allocated
}

// Verdict is what is done about one guest.
type Verdict string

// The verdicts.
const (
	VerdictKeep      Verdict = "keep"      // as the ledger says; a claim that it lacks is made anew
	VerdictOwn       Verdict = "own"       // the token is here; the claim is made anew
	VerdictArriving  Verdict = "arriving"  // the claim of the move that brings it is made anew; the move decides
	VerdictElsewhere Verdict = "elsewhere" // the token is another host's; what is here is counted
	VerdictStranger  Verdict = "stranger"  // nobody ever managed it: counted while it runs, as any
	VerdictNothing   Verdict = "nothing"   // there is nothing of it here
	VerdictDoubt     Verdict = "doubt"     // counted and named, until somebody knows better
)

const anyDomain, anyRecord, anyOthers = DomainNone | DomainOff | DomainLeft | DomainRunning | DomainHalfway,
	RecordNone | RecordHere | RecordBehind | RecordGone, OthersNone | OthersSilent | OthersLower | OthersOwn

const anyWay, anyAllocated = WayNone | WayIn | WayGiven | WayOut, AllocatedUnknown | AllocatedNone | AllocatedHere | AllocatedElsewhere

// rebuildRow is one row: it holds where each fact is among those named. Zero stands
// for any.
type rebuildRow struct {
	domain    Domain
	unmanaged bool // only a guest that nobody knows as Berth's
	record    Record
	others    Others
	way       Way
	allocated Allocated

	verdict Verdict
	why     string // of a doubt, for people
}

// rebuildTable is read from above; the first row that holds decides. The last ones
// hold for all that is left.
var rebuildTable = []rebuildRow{
	// What the ledger still says by its last commit stands, but against a higher epoch.
	{record: RecordHere | RecordBehind, others: OthersOwn, domain: DomainRunning, verdict: VerdictDoubt, why: "it runs here, and another host has its token by a higher epoch"},
	{record: RecordHere | RecordBehind, others: OthersOwn, verdict: VerdictElsewhere},
	{record: RecordHere, verdict: VerdictKeep},
	{record: RecordGone, verdict: VerdictKeep},

	// No domain: nothing runs, and nothing can be started from here.
	{domain: DomainNone, record: RecordBehind, verdict: VerdictKeep},
	{domain: DomainNone, verdict: VerdictNothing},

	{unmanaged: true, verdict: VerdictStranger},

	// It runs. A source that has given the token away has stopped first, and a
	// destination resumes only what it has accepted: so it is this host's, unless
	// somebody says otherwise.
	{domain: DomainRunning, others: OthersOwn, verdict: VerdictDoubt, why: "it runs here, and another host has its token"},
	{domain: DomainRunning, way: WayGiven | WayOut, verdict: VerdictOwn},
	{domain: DomainRunning, way: WayIn, verdict: VerdictDoubt, why: "it runs here, and the host that it comes from has not given its token away"},
	{domain: DomainRunning, record: RecordBehind, verdict: VerdictOwn},
	{domain: DomainRunning, allocated: AllocatedElsewhere, verdict: VerdictDoubt, why: "it runs here, and Placement has it on another host"},
	{domain: DomainRunning, others: OthersNone | OthersLower, verdict: VerdictOwn},
	// Two that agree, where a third is silent: no move of Berth's leaves a guest
	// running and its allocation here.
	{domain: DomainRunning, others: OthersSilent, allocated: AllocatedHere, verdict: VerdictOwn},
	{domain: DomainRunning, verdict: VerdictDoubt, why: "it runs here, and not every host that may have its token has answered"},

	// A copy that a migration has brought in part, or has not taken whole.
	{domain: DomainHalfway, way: WayIn | WayGiven, verdict: VerdictArriving},
	{domain: DomainHalfway, others: OthersOwn, verdict: VerdictElsewhere},
	{domain: DomainHalfway, way: WayOut, verdict: VerdictOwn},
	{domain: DomainHalfway, record: RecordBehind, verdict: VerdictOwn},
	{domain: DomainHalfway, verdict: VerdictDoubt, why: "a migration that nobody knows of has left it paused"},

	// What a migration has left behind: whether the token went with it stood in the
	// records that were lost.
	{domain: DomainLeft, others: OthersOwn, verdict: VerdictElsewhere},
	{domain: DomainLeft, verdict: VerdictDoubt, why: "it has left by a migration, and no host that answers has its token"},

	// It stands still. A definition proves nothing: a migration writes one before it
	// has brought anything.
	{domain: DomainOff, others: OthersOwn, verdict: VerdictElsewhere},
	{domain: DomainOff, others: OthersLower, verdict: VerdictDoubt, why: "another host says that it owns it, by an epoch that is too old"},
	{domain: DomainOff, others: OthersSilent, verdict: VerdictDoubt, why: "it is off, and not every host that may have its token has answered"},
	{domain: DomainOff, way: WayGiven, verdict: VerdictOwn},
	{domain: DomainOff, way: WayIn | WayOut, verdict: VerdictDoubt, why: "it is off in the middle of a migration whose records were lost"},
	{domain: DomainOff, allocated: AllocatedElsewhere, verdict: VerdictDoubt, why: "it is off, and Placement has it on another host"},
	{domain: DomainOff, record: RecordBehind, verdict: VerdictOwn},
	{domain: DomainOff, allocated: AllocatedHere, verdict: VerdictOwn},
	{domain: DomainOff, verdict: VerdictDoubt, why: "it is off, and neither another host nor Placement knows whose it is"},
}

// Judge gives the verdict on one guest, and of a doubt why.
func (f Facts) Judge() (Verdict, string) {
	for _, r := range rebuildTable {
		if r.holds(f) {
			return r.verdict, r.why
		}
	}
	// Facts that are none of those above; a test enumerates those that are.
	return VerdictDoubt, fmt.Sprintf("it is not understood: %+v", f)
}

func (r rebuildRow) holds(f Facts) bool {
	in := func(named, fact uint8) bool { return named == 0 || named&fact != 0 }
	return in(uint8(r.domain), uint8(f.Domain)) && (!r.unmanaged || !f.Managed) && in(uint8(r.record), uint8(f.Record)) &&
		in(uint8(r.others), uint8(f.Others)) && in(uint8(r.way), uint8(f.Way)) && in(uint8(r.allocated), uint8(f.Allocated))
}
