package audit

import (
	"cmp"
	"fmt"
	"strings"
)

// settling is what an operator decides of a migration, and how it is known.
const settling = ` --guest-is-at HOST --reason "what you have checked"`

// say gives a row its words: what is so, what an operator does next, and why no heal
// is provable.
func (j *joined) say(r *Row) {
	inst, fleet := j.instances[r.Subject], j.in.Fleet[r.Subject]
	move := ""
	if m, ok := j.moveOf(r.Subject); ok {
		move = m.UUID
	}
	what := "instance " + r.Subject
	if r.Name != "" {
		what = "guest " + r.Name
	}
	const byItself = "nothing; it is put right by itself"
	switch r.Code {
	case CodeAgree:
		r.Message = what + " is counted as it is claimed"
	case CodeNotManaged:
		r.Message = what + " is off, and nobody manages it"
	case CodeCreating:
		r.Message = what + " is being made, or has just arrived"
		r.Quarantine = "who makes it writes its allocation"
	case CodeMoving:
		r.Message = "it moves, with migration " + move
		if move == "" {
			r.Message = "it moves: " + fleet.Words
		}
	case CodeMovingMissing:
		r.Message = what + " moves, and Placement counts it nowhere"
		r.Change, r.Quarantine = "berth migration show "+move, "only the move's conductor writes its allocation; it is looked at again when the move is over"
	case CodeMovingDiffers:
		r.Message = what + " moves, and is counted as no step of a move leaves it"
		r.Change, r.Quarantine = "berth migration show "+move, "only the move's conductor writes its allocation; it is looked at again when the move is over"
	case CodeKeptUndefined:
		r.Message = fmt.Sprintf("%s went to %s with migration %s, and what is kept of it here has no definition any more: it cannot be taken back", what, inst.Holder, move)
		r.Change, r.Quarantine = "berth resize confirm "+cmp.Or(r.Name, r.Subject)+", or define it here again before it is reverted", "what it holds here is its move's until that is confirmed"
	case CodeUnconfirmedGone:
		r.Message = what + " waits to have migration " + move + " confirmed, and libvirt has no such domain"
		r.Change, r.Quarantine = "define it again, or give back what it was: berth resize revert "+cmp.Or(r.Name, r.Subject), "until it is decided what it holds stays"
	case CodeHalfLeft:
		r.Message = fmt.Sprintf("what %s had here is still held for migration %s, which nobody conducts any more, and the guest is confirmed where it is: %s", what, move, fleet.Words)
		r.Change, r.Quarantine = "berth migration settle "+move+settling, "its definition and its disks here go with it"
	case CodeUnconducted:
		r.Message = fmt.Sprintf("%s is held for migration %s, and this host, which should conduct it, has no record of it", what, move)
		r.Change, r.Quarantine = "look for the guest on the other host (berth instance show "+cmp.Or(r.Name, r.Subject)+"), and decide with berth migration settle "+move+settling, "its move may still need it"
	case CodeHalvesMissing:
		r.Message = what + " moves, and Placement has lost what it and migration " + move + " hold"
	case CodePlacementUnknown:
		why := j.in.Placement.Why
		if why == "" && j.in.Tree == nil {
			why = "the host's providers are not known yet"
		}
		if _, read := j.in.Placement.Consumers[r.Subject]; why == "" && read {
			why = "the host does not know the devices of its claim any more: " + strings.Join(j.unplaced(r.Subject), ", ")
		} else if why == "" {
			why = "its allocation could not be read"
		}
		r.Message = "Placement cannot be compared: " + why
		r.Change, r.Quarantine = "berth status, for what keeps Placement", "without an answer nothing is known"
	case CodeLibvirtUnknown:
		r.Message = "libvirt cannot be asked whether the guest runs: " + j.in.Domains.Why
		r.Change, r.Quarantine = "start libvirtd (systemctl start libvirtd)", "it may run here"
	case CodeMissing:
		r.Message = what + " is not counted in Placement"
	case CodeAmounts:
		r.Message = what + " is counted otherwise than it is claimed"
	case CodeMisplaced:
		r.Message = what + " is counted on another provider of this host than its claim says"
	case CodeElsewhere:
		r.Message = what + " is this host's, and is counted at another alone"
		r.Change, r.Quarantine = "look on that host (berth instance show "+cmp.Or(r.Name, r.Subject)+"); start its agent, or delete there what is stale", j.others(fleet)
	case CodeDoubled:
		r.Message = what + " is counted on this host and on another at once"
		r.Change, r.Quarantine = "look on that host (berth instance show "+cmp.Or(r.Name, r.Subject)+"); start its agent, or delete there what is stale", j.others(fleet)
	case CodeTwoOwners:
		r.Message = what + " is this host's, and another says so of itself: " + fleet.Words
		r.Change, r.Quarantine = "compare berth instance show "+r.Subject+" on both; the higher epoch owns it", "two hosts say that they own it"
	case CodeGuestGone:
		r.Message = what + " is claimed, and libvirt has no such domain"
		r.Change, r.Quarantine = byItself+": two reads that agree release it (berth instance delete "+cmp.Or(r.Name, r.Subject)+" does it at once)", "one read is no proof that it was deleted"
	case CodeClaimMissing:
		r.Message = what + " is this host's and has no claim"
		r.Change, r.Quarantine = "berth instance adopt "+r.Subject, "what it uses is not claimed: nothing is freed"
	case CodeRecordOnly:
		r.Message = what + " is recorded, with no claim and no domain"
		r.Change, r.Quarantine = "berth instance delete "+r.Subject, "who made the record may still be at it"
	case CodeClaimHeld:
		r.Message = what + " is held for a move that nobody knows"
		r.Change, r.Quarantine = "berth claim show "+r.Subject, "its move may still need it"
	case CodeClaimWithoutOwner:
		r.Message = what + " has a claim and no record"
		r.Change, r.Quarantine = "berth claim show "+r.Subject, "who owns it is not known"
	case CodeInTransit:
		r.Message = fmt.Sprintf("the token of %s was given to %s, and no move here knows whether it came", what, inst.Holder)
		r.Change, r.Quarantine = "berth instance show "+r.Subject+" -c "+inst.Holder, "who owns it is not known"
	case CodeRunsUnowned:
		r.Message = fmt.Sprintf("%s runs here, though its token is with %s", what, inst.Holder)
		r.Change, r.Quarantine = "look on both hosts before anything else", "what runs is never freed"
	case CodeClaimLeft:
		r.Message = fmt.Sprintf("%s has left to %s, and its claim here has not gone", what, inst.Holder)
		r.Change, r.Quarantine = byItself+" once its domain is gone", "its claim goes first"
	case CodeLeftBehind:
		r.Message = what + " has left, and is still counted here"
		if inst.Holder != "" {
			r.Message = fmt.Sprintf("%s has left to %s, and is still counted here", what, inst.Holder)
		} else if r.Name == "" {
			r.Message = "instance " + r.Subject + " is another host's (" + fleet.Words + "), and is counted here too"
		}
		r.Change, r.Quarantine = "berth audit --heal asks the host that has it; start its agent", j.others(fleet)
	case CodeUnmanaged:
		r.Message = what + " runs, and nobody manages it; what it uses is given to nobody"
		r.Change, r.Quarantine = "berth instance adopt "+r.Subject, "only a person takes a guest under Berth's hand"
	case CodeUnmanagedCounted:
		r.Message = what + " is not managed here, and somebody counts it in Placement"
		r.Change, r.Quarantine = "berth instance adopt "+r.Subject+", or find out who wrote the allocation", "a guest is here, and whose it is is not known"
	case CodeMigrationLeft:
		r.Message = "migration " + r.Subject + " is over, and still holds what its guest held here"
		r.Quarantine = "its type is not MIGRATION: no other host may know it before it goes"
		r.Change = "berth audit --all --heal"
	case CodeStranger:
		r.Message = "consumer " + r.Subject + " holds resources of this host, and nobody here knows it"
		r.Change, r.Quarantine = j.strangerChange(r, fleet), j.others(fleet)
	case CodeStrangerMove:
		r.Message = "migration " + r.Subject + " holds resources of this host, and nobody here knows it"
		r.Change, r.Quarantine = j.strangerChange(r, fleet), j.others(fleet)
	default:
		r.Message = "its facts are in no row of the table"
		r.Quarantine = "report it"
	}
	if r.Verdict == Agree || r.Heal != HealNone {
		r.Quarantine = ""
	}
	if r.Heal != HealNone {
		r.Change = "berth audit --heal"
	}
	if r.Verdict == Agree {
		r.Change = ""
	}
	if r.Verdict != Agree && len(r.Differences) > 0 {
		r.Message += ": " + sum(r.Differences)
	}
}

// others says why the answers of other hosts are not enough.
func (j *joined) others(a Answer) string {
	switch a.Fleet {
	case FleetSilent:
		return "who may own it did not answer: " + a.Words
	case FleetNobody:
		return "the hosts that were asked do not know it (" + a.Words + "); another tool may own it"
	case FleetOwner:
		return "another host owns it (" + a.Words + ") and writes what it holds"
	case FleetBusy, FleetMoving:
		return "another host is about to change it: " + a.Words
	}
	return "another host may own it, and none was asked"
}

func (j *joined) strangerChange(r *Row, a Answer) string {
	switch a.Fleet {
	case FleetSilent:
		return "start the agents that are silent, then berth audit --all"
	case FleetNobody:
		return "if no other tool owns it: openstack resource provider allocation delete " + r.Subject
	case FleetOwner, FleetBusy, FleetMoving:
		return "berth instance show " + r.Subject + " on that host"
	}
	return "berth audit --all asks every host for it"
}

// sum is differences for people.
func sum(all []Difference) string {
	var out []string
	for _, d := range all {
		out = append(out, fmt.Sprintf("%s on %s: want %d, have %d", d.Class, d.Provider, d.Want, d.Have))
	}
	return strings.Join(out, "; ")
}
