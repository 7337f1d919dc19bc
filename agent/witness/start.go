package witness

// Store is what the store of the fleet's records is to a host that was rebooted.
type Store int

// The states of a store.
const (
	// NoStore: none is configured, or this host never had records there.
	NoStore Store = iota
	// StoreSilent: it has not answered in this boot.
	StoreSilent
	// StoreUnproven: it was replaced, emptied, restored or rolled back, and other hosts have not all written
	// their records again.
	StoreUnproven
	// StoreRemoved: this host had records in one, and none is configured any more.
	StoreRemoved
	// StoreProven: it is the one that this host remembers, or all hosts have written again.
	StoreProven
)

// Record is what the fleet's record of the instance says, against this host's ledger.
type Record int

// The records.
const (
	NoRecord Record = iota
	RecordUnreadable
	OtherHigher // another host has it, with a higher epoch than the ledger's
	OtherSame
	OtherLower
	OwnHigher // this host has it, with a higher epoch than the ledger's
	OwnSame
	OwnLower
)

// Placement is where Placement counts the instance.
type Placement int

// The answers of Placement.
const (
	PlacementNotAsked Placement = iota // there is none to ask, or no need
	PlacementSilent
	CountedHere
	CountedElsewhere // on other hosts alone
	NotCounted
)

// Origin is how the instance came to this host, and what the host that it came from says.
type Origin int

// The origins.
const (
	Made       Origin = iota // here, or nobody needs to be asked
	CameSilent               // by a move, and neither the old host nor the move's conductor answers
	CameAgreed               // by a move, and the one that was asked knows of no higher epoch
	CameTaken                // by a move, and the one that was asked has it with a higher epoch
)

// Facts are what is known of an instance whose token is in this host's ledger.
type Facts struct {
	Store  Store
	Record Record
	// LedgerBehind: the host's own record has a higher count than its ledger, which was rolled back.
	LedgerBehind bool
	// Died: a death of this host stood, by which its instances could be evacuated.
	Died bool
	// Running: its process lives here. A host whose disk was rolled back was off, and runs none.
	Running bool
	// Moves: the ledger has an open move of the instance between this host and the one of its record.
	Moves     bool
	Placement Placement
	// SameDatabase: Placement and the store are one database, so that they are one witness.
	SameDatabase bool
	Origin       Origin
}

// Action is what follows.
type Action string

// The actions.
const (
	Start   Action = "start"    // it is this host's
	Wait    Action = "wait"     // until a witness answers, or an operator says so
	GiveWay Action = "give way" // it is another's
	InDoubt Action = "in doubt" // witnesses contradict each other: an operator says whose it is
)

// rule is a row: the first whose condition holds counts.
type rule struct {
	code   string
	when   func(Facts) bool
	action Action
	why    string
}

// rules are the table. A record alone takes no instance away, since it may be written by whom it does
// not concern: this host has seen its own death, or its ledger knows of the move, or is known to be
// older. One that runs is ended for its host's death alone.
// While the store is unproven an instance waits whatever Placement counts: one that waits is written
// again, and other hosts wait for that.
var rules = []rule{
	{"record_unreadable", func(f Facts) bool { return f.asked() && f.Record == RecordUnreadable }, InDoubt, "its record cannot be read"},
	{"given_away_unproven", func(f Facts) bool {
		return f.asked() && f.Record == OtherHigher && !f.Died && (f.Running || !f.Moves && !f.LedgerBehind)
	}, InDoubt, "its record has another host with a higher epoch, and no death of this host is known by which it was evacuated"},
	{"given_away", func(f Facts) bool { return f.asked() && f.Record == OtherHigher }, GiveWay, "its record has another host with a higher epoch"},
	{"taken_back", func(f Facts) bool { return f.Origin == CameTaken }, GiveWay, "the host that it came from has it with a higher epoch"},
	{"epoch_twice", func(f Facts) bool { return f.asked() && f.Record == OtherSame }, InDoubt, "another host says that it has it too, with the same epoch"},
	{"ledger_behind", func(f Facts) bool { return f.asked() && f.Record == OwnHigher }, InDoubt, "its record has a higher epoch than the ledger of this host: the ledger is older"},
	{"counted_elsewhere", func(f Facts) bool { return f.Placement == CountedElsewhere && f.Store != StoreUnproven }, InDoubt, "Placement counts it on another host alone"},
	{"ledger_rolled_back", func(f Facts) bool { return f.asked() && f.LedgerBehind && f.Record == NoRecord && !f.Running }, InDoubt, "the ledger of this host is older than it was, and the fleet has no record of the instance any more"},
	{"store_silent", func(f Facts) bool { return f.Store == StoreSilent }, Wait, "the store of the fleet's records has not answered in this boot"},
	{"store_proven", func(f Facts) bool { return f.Store == StoreProven }, Start, "the fleet's records do not have it elsewhere"},
	{"placement_confirms", func(f Facts) bool {
		return (f.Store == StoreUnproven || f.Store == StoreRemoved) && f.Placement == CountedHere && !f.SameDatabase
	}, Start, "Placement counts it here"},
	{"store_unproven", func(f Facts) bool { return f.Store == StoreUnproven }, Wait, "the store of the fleet's records was replaced, emptied, restored or rolled back, and other hosts have not written theirs again"},
	{"store_removed", func(f Facts) bool { return f.Store == StoreRemoved }, Wait, "this host had records in a store that is not configured any more, and no Placement of another database counts it here"},
	{"made_here", func(f Facts) bool { return f.Origin == Made }, Start, "no other host ever had it"},
	{"source_agrees", func(f Facts) bool { return f.Origin == CameAgreed }, Start, "the host that it came from does not have it"},
	{"placement_has_it_here", func(f Facts) bool { return f.Placement == CountedHere }, Start, "Placement counts it here"},
	{"source_silent", func(f Facts) bool { return true }, Wait, "the host that it came from is silent, and may have been given it back"},
}

// asked reports whether the record was read.
func (f Facts) asked() bool { return f.Store == StoreUnproven || f.Store == StoreProven }

// Verdict is an action, with the row that gave it.
type Verdict struct {
	Action Action
	Code   string
	Why    string
}

// Decide gives the action of the first row that holds.
func Decide(f Facts) Verdict {
	for _, r := range rules {
		if r.when(f) {
			return Verdict{r.action, r.code, r.why}
		}
	}
	panic("unreachable: the last row always holds")
}
