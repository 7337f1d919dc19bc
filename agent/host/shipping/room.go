package shipping

import (
	"errors"
	"fmt"

	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/migration"
)

// roomNeeded sums up what files need of each filesystem.
type roomNeeded struct {
	k     *Dock
	no    *fault.Refusal
	bytes map[string]int64 // by filesystem; what other attempts have yet to write included
}

// roomNeeded begins with what is on its way here by other attempts: they have looked for
// room before, and have not used all of it yet.
func (k *Dock) roomNeeded(no *fault.Refusal, ref migration.Ref) (*roomNeeded, error) {
	n := &roomNeeded{k: k, no: no, bytes: map[string]int64{}}
	for _, r := range k.c.Memory.Remembering(MemoryComing) {
		if r.Migration == ref.Migration {
			continue
		}
		rec, _, err := memory.Recall[comingFiles](k.c.Memory, r, MemoryComing)
		if err != nil {
			return nil, err
		}
		for _, f := range rec.Files {
			if f.Compare || f.Sealed {
				continue
			}
			_, _, occupies, err := k.c.Files.Lookup(f.Made.Part)
			if err != nil && !errors.Is(err, fault.NotFound) {
				return nil, err
			}
			space, err := k.c.Files.Space(f.Path)
			if err != nil {
				return nil, err
			}
			n.bytes[space.Device] += max(f.Needs-occupies, 0)
		}
	}
	return n, nil
}

// add refuses the file with which there is no more room. What a file occupies at the
// source is what it needs here, as holes are kept; later is what it will need besides,
// when it is here.
func (n *roomNeeded) add(f *comingFile, bytes, later int64) error {
	space, err := n.k.c.Files.Space(f.Path)
	if err != nil {
		return err
	}
	f.Needs = bytes
	n.bytes[space.Device] += bytes + later
	if want, have := n.bytes[space.Device], max(space.Bytes-n.k.c.Reserve, 0); want > have {
		n.no.Add(fault.DoesNotFit, n.k.roomShort(f, want, have))
	}
	return nil
}

func (k *Dock) roomShort(f *comingFile, want, have int64) fault.Reason {
	free := mib(have) + " free"
	if k.c.Reserve > 0 {
		free += fmt.Sprintf(" beside the %s that are kept", mib(k.c.Reserve))
	}
	return fault.Reason{
		Code:    "disk_room_short",
		Message: fmt.Sprintf("disk %s: no room for %s on %s: want %s, %s", f.Target, f.Path, k.c.Name, mib(want), free),
		Want:    mib(want), Have: mib(have), Change: "free space on that filesystem",
	}
}

// full says of a filesystem that was full before a file was whole what the rest of it
// wants; any other error stays as it is. Nothing that another try would change: the
// destination refuses, and what came of the file goes with the undo.
func (k *Dock) full(err error, f comingFile) error {
	if !errors.Is(err, fault.DoesNotFit) {
		return err
	}
	space, spaceErr := k.c.Files.Space(f.Path)
	if spaceErr != nil {
		return errors.Join(err, spaceErr)
	}
	_, _, occupies, _ := k.c.Files.Lookup(f.Made.Part) // 0 where nobody knows
	return fault.Refuse(fault.DoesNotFit, "", k.roomShort(&f, max(f.Needs-occupies, 1), max(space.Bytes-k.c.Reserve, 0)))
}

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
