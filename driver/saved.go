package driver

import "berth/internal/fault"

// Saved is what a hypervisor keeps for a domain beside its definition, on its own host. It
// stays behind when the instance moves, and is of other disks once those have changed.
type Saved struct {
	Memory      bool     // the next start goes on from memory that was saved (virsh managedsave)
	Snapshots   []string // by name, sorted
	Checkpoints []string // of disks, for incremental backups; by name, sorted
}

// StaleReasons is Reasons for a copy that is not the instance any more, which runs, or is kept,
// elsewhere: no remedy starts it.
func (s Saved) StaleReasons(name string) []fault.Reason {
	out := s.Reasons(name)
	for i, r := range out {
		if r.Code == "saved" {
			out[i].Message = "the copy of instance " + name + " here is saved, and is not the instance any more: started from that memory it would be a second one"
			out[i].Change = "virsh managedsave-remove " + name + " gives the memory of this old copy up; do not start it"
		}
	}
	return out
}

// Reasons gives a reason, each with a remedy, for everything that is saved of the domain of
// that name; none for nothing.
func (s Saved) Reasons(name string) []fault.Reason {
	var out []fault.Reason
	if s.Memory {
		out = append(out, fault.Reason{
			Code: "saved", Message: "instance " + name + " is saved: its memory lies in a file on its host, which goes with its disks as they are now",
			Have:   "saved memory",
			Change: "virsh start " + name + " to go on from it, or --discard-saved-state (virsh managedsave-remove " + name + ") to give the memory up",
		})
	}
	kept := func(code, what, command string, names []string) {
		for _, n := range names {
			out = append(out, fault.Reason{
				Code: code, Message: "instance " + name + " has the " + what + " " + n + ", which its host alone knows and which would be lost",
				Have: n, Change: "virsh " + command + " " + name + " --metadata " + n + " to give it up; what is in the disks stays",
			})
		}
	}
	kept("has_snapshot", "snapshot", "snapshot-delete", s.Snapshots)
	kept("has_checkpoint", "checkpoint", "checkpoint-delete", s.Checkpoints)
	return out
}
