package audit

import (
	"maps"

	"berth/agent/inventory"
	"berth/placementclient"
)

// Input is all that a join is made of: what was read at about one moment. What was
// read later of one part is no fault; the doing looks again before it writes.
type Input struct {
	Host string // this host's name
	// Tree is where claims are counted; nil while nobody knows, and then nothing that
	// Placement says is judged.
	Tree      *inventory.Tree
	Ledger    Ledger
	Domains   Domains
	Placement Placement
	// Fleet is what other hosts answered, by consumer; absent for those of which
	// nobody was asked.
	Fleet map[string]Answer
	// Names are hosts of other providers, as far as they are known, for people.
	Names map[string]string
}

// Ledger is what this host has recorded.
type Ledger struct {
	Instances []Instance
	Claims    []Claim
	Moves     []Move
}

// Instance is a guest's record.
type Instance struct {
	UUID, Name, ProjectID, UserID string
	Here                          bool   // its token is here
	Holder                        string // else the host that it was given to
	Migration                     string // by which it was given or came; empty for none
}

// Claim is what this host holds for an instance. One that is changed where it is has two:
// its own and the change's.
type Claim struct {
	Instance  string
	Migration string // of an owner that is a move; empty for the instance's own
	State     ClaimState
	Held      inventory.Held
}

// Move is a migration that this host knows as its conductor, source or destination.
type Move struct {
	UUID, Instance string
	Over           bool
	// Waits: the guest is where the move was to bring it, and is to be confirmed. Lost:
	// the move is known by what the ledger holds for it alone, though this host conducts it.
	Waits, Lost bool
	// Writes: its conductor is at a step that writes what both consumers hold.
	Writes bool
	// Kept is what both consumers hold by the journal, once they were swapped and for
	// as long as no write of them is under way; nil for every other move.
	Kept *Halves
}

// Halves are the two consumers of a move.
type Halves struct {
	Instance, Migration placementclient.Allocations
}

// Domains is what libvirt says.
type Domains struct {
	Why  string // why it did not answer; empty where it did
	List []LibvirtDomain
}

// LibvirtDomain is one of them.
type LibvirtDomain struct {
	UUID, Name string
	Active     bool
}

// Placement is what was read of it.
type Placement struct {
	Why string // why it did not answer; empty where it did
	// Providers has for each provider of the tree, and for the sharing one with its
	// disks, who holds what of it.
	Providers map[string]map[string]placementclient.Resources
	// Consumers are those that were read whole; see Unread.
	Consumers map[string]placementclient.Allocations
}

// Answer is what other hosts said of a consumer.
type Answer struct {
	Fleet Fleet
	Words string // which hosts said it, or were silent, for people
}

// held is what a consumer holds of this host by the providers' lists.
func (p Placement) held(consumer string) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{}
	for rp, all := range p.Providers {
		if r, ok := all[consumer]; ok && len(r) > 0 {
			out[rp] = r
		}
	}
	return out
}

// split parts what a consumer holds into what is this host's and the rest. Every
// host that shares a provider has guests there: the disk of a sharing provider is
// this host's where the consumer holds of its tree, or is a guest of its own, unless
// the consumer holds of another host too that gives it no other disk.
func split(t *inventory.Tree, held map[string]placementclient.Resources, own bool) (mine, others map[string]placementclient.Resources) {
	mine, others = map[string]placementclient.Resources{}, map[string]placementclient.Resources{}
	otherDisk := false
	for rp, r := range held {
		switch {
		case t.Owns(rp):
			mine[rp] = r
		case rp != t.Disk:
			others[rp] = r
			otherDisk = otherDisk || r[placementclient.ClassDiskGB] > 0
		}
	}
	if disk, ok := held[t.Disk]; ok && !t.Owns(t.Disk) {
		if (own || len(mine) > 0) && (len(others) == 0 || otherDisk) {
			mine[t.Disk] = disk
		} else {
			others[t.Disk] = disk
		}
	}
	return mine, others
}

func same(a, b map[string]placementclient.Resources) bool {
	return maps.EqualFunc(a, b, func(x, y placementclient.Resources) bool { return maps.Equal(x, y) })
}

// within reports whether a holds of each provider and class no more than b.
func within(a, b map[string]placementclient.Resources) bool {
	for rp, r := range a {
		for class, n := range r {
			if n > b[rp][class] {
				return false
			}
		}
	}
	return true
}
