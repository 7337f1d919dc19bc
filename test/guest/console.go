package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Beat is one heartbeat of the guest.
type Beat struct {
	Boot    string  // drawn at random when the guest booted
	N       uint64  // counts from 1 in each boot
	Uptime  float64 // seconds since boot, by the guest's clock
	Passes  uint64  // how often all its memory was written and checked
	MiB     uint64  // memory written and checked, in all
	Bad     uint64  // memory pages that were not as written
	DiskBad uint64  // disk blocks that were not as written
	Blocks  uint64  // disk blocks written; 0: it has no disk
}

// ParseConsole reads the heartbeats from a guest's console. Other lines, and
// lines torn by a hand-over, are passed over.
func ParseConsole(r io.Reader) ([]Beat, error) {
	var out []Beat
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if b, ok := parseBeat(s.Text()); ok {
			out = append(out, b)
		}
	}
	return out, s.Err()
}

// parseBeat reads one line; it is a beat only if every field is there.
func parseBeat(line string) (Beat, bool) {
	_, line, ok := strings.Cut(strings.TrimRight(line, "\r"), "hb boot=")
	f := strings.Fields("boot=" + line)
	if !ok || len(f) != 8 {
		return Beat{}, false
	}
	var b Beat
	numbers := map[string]*uint64{"n": &b.N, "passes": &b.Passes, "mib": &b.MiB, "bad": &b.Bad, "diskbad": &b.DiskBad, "blocks": &b.Blocks}
	for _, kv := range f {
		k, v, _ := strings.Cut(kv, "=")
		var err error
		switch target := numbers[k]; {
		case k == "boot":
			b.Boot = v
		case k == "up":
			b.Uptime, err = strconv.ParseFloat(v, 64)
		case target != nil:
			*target, err = strconv.ParseUint(v, 10, 64)
			delete(numbers, k)
		default:
			return Beat{}, false
		}
		if err != nil {
			return Beat{}, false
		}
	}
	return b, len(numbers) == 0 && len(b.Boot) == 16
}

// Boot is what the guest says of its machine when it has booted.
type Boot struct {
	ID        string // drawn at random, as Beat.Boot
	CPUs      int
	MemoryMiB int    // as its kernel counts it; less than the machine has
	DiskMiB   int    // of its first disk; 0: none
	Before    string // the boot that wrote the disk before this one; empty for none
	Kept      int    // blocks of that boot that are as it wrote them
	Lost      int    // blocks of that boot that are not
}

// ParseBoots reads from a guest's console what it said at each boot.
func ParseBoots(r io.Reader) ([]Boot, error) {
	var out []Boot
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		_, line, ok := strings.Cut(strings.TrimRight(s.Text(), "\r"), "guest ready: ")
		if !ok {
			continue
		}
		var b Boot
		var ignored string
		if _, err := fmt.Sscanf(line, "boot=%s dirty=%s rate=%s disk=%s cpus=%d memory=%dMiB vda=%dMiB before=%s kept=%d lost=%d",
			&b.ID, &ignored, &ignored, &ignored, &b.CPUs, &b.MemoryMiB, &b.DiskMiB, &b.Before, &b.Kept, &b.Lost); err != nil {
			continue // torn
		}
		if b.Before == "none" {
			b.Before = ""
		}
		out = append(out, b)
	}
	return out, s.Err()
}

// Proof is what Continuity has shown.
type Proof struct {
	Boot        string
	Source      int    // beats on the first console
	Destination int    // beats on the second
	First, Last uint64 // the counter's ends
	Torn        int    // beats lost in the hand-over: 0, or 1 whose line was torn between the two consoles
	Bytes       uint64 // memory written and checked in all
	Passes      uint64
	Blocks      uint64
}

// String is one line for people.
func (p Proof) String() string {
	return fmt.Sprintf("boot %s: heartbeats %d…%d, %d on the source and %d on the destination, none missing; %d MiB of memory checked in %d passes, %d disk blocks: no error",
		p.Boot, p.First, p.Last, p.Source, p.Destination, p.Bytes>>20, p.Passes, p.Blocks)
}

// Continuity proves from the beats on the source's console and then on the
// destination's that the guest ran through: one boot id, the counter unbroken
// on both sides and over the hand-over (save one line that both consoles hold a
// half of), the clock never backwards, no memory and no disk error, and at
// least one beat on each. The error lists everything that is wrong.
func Continuity(source, destination []Beat) (Proof, error) {
	if len(source) == 0 || len(destination) == 0 {
		return Proof{}, fmt.Errorf("the guest's continuity cannot be shown: %d heartbeats on the source, %d on the destination", len(source), len(destination))
	}
	first, last := source[0], destination[len(destination)-1]
	p := Proof{
		Boot: first.Boot, Source: len(source), Destination: len(destination), First: first.N, Last: last.N,
		Bytes: (last.MiB - min(first.MiB, last.MiB)) << 20, Passes: last.Passes - min(first.Passes, last.Passes), Blocks: last.Blocks - min(first.Blocks, last.Blocks),
	}
	all := append(append([]Beat(nil), source...), destination...)
	var wrong []error
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for i, b := range all {
		where := "source"
		if i >= len(source) {
			where = "destination"
		}
		if b.Bad > 0 {
			say("%s: heartbeat %d: %d bad memory pages", where, b.N, b.Bad)
		}
		if b.DiskBad > 0 {
			say("%s: heartbeat %d: %d bad disk blocks", where, b.N, b.DiskBad)
		}
		if i == 0 {
			continue
		}
		before := all[i-1]
		switch missing := int64(b.N - before.N - 1); {
		case b.Boot != before.Boot:
			say("%s: rebooted: boot id %s after %s", where, b.Boot, before.Boot)
		case missing == 0:
		case missing == 1 && i == len(source):
			p.Torn = 1
		case missing < 0:
			say("%s: heartbeat %d after %d", where, b.N, before.N)
		default:
			say("%s: %d heartbeats missing between %d and %d", where, missing, before.N, b.N)
		}
		if b.Boot == before.Boot && b.Uptime < before.Uptime {
			say("%s: heartbeat %d: the clock went back from %.2f to %.2f", where, b.N, before.Uptime, b.Uptime)
		}
	}
	if len(wrong) > 0 {
		return p, fmt.Errorf("the guest did not run through: %w", errors.Join(wrong[:min(len(wrong), 20)]...))
	}
	return p, nil
}

// Healthy is Continuity for a guest that stayed on one host.
func Healthy(beats []Beat) (Proof, error) {
	if len(beats) < 2 {
		return Proof{}, fmt.Errorf("the guest's health cannot be shown: %d heartbeats", len(beats))
	}
	p, err := Continuity(beats[:1], beats[1:])
	if err == nil && p.Torn > 0 {
		err = fmt.Errorf("the guest did not run through: a heartbeat is missing after %d", beats[0].N)
	}
	p.Source, p.Destination = len(beats), 0
	return p, err
}
