package fileusers

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// Answer is who uses one file, or may.
type Answer struct {
	Path    string
	Users   []User
	Open    []disks.Writer
	Perhaps []Unresolved // of each it is not known whether it uses the file
}

// Of answers for one file. except is the instance whose file it is: it does not count
// as a user.
func (s *Survey) Of(path, except string) (Answer, error) {
	a := Answer{Path: path}
	file, err := disks.Which(s.files, path)
	if err != nil {
		return a, fault.Wrap(err, "look who uses %s", path)
	}
	for _, u := range s.users[file] {
		if u.Instance != except {
			a.Users = append(a.Users, u)
		}
	}
	real := path
	if to, _, _, err := s.files.Lookup(path); err == nil {
		real = to
	}
	for dir, users := range s.folders {
		for _, u := range users {
			if in := dir + "/"; u.Instance != except && (strings.HasPrefix(real, in) || strings.HasPrefix(filepath.Clean(path), in)) && !slices.Contains(a.Users, u) {
				a.Users = append(a.Users, u)
			}
		}
	}
	for _, u := range s.unresolved {
		if u.Instance != except && u.couldBe(path, real) {
			a.Perhaps = append(a.Perhaps, u)
		}
	}
	a.Open, err = s.files.Openers(path)
	return a, err
}

// Writer names a domain, other than except, of which a file is a disk or may be one, and
// which may therefore write it; empty for none. Whoever only stands on it does not.
func (s *Survey) Writer(path, except string) (string, error) {
	a, err := s.Of(path, except)
	for _, u := range a.Users {
		if !u.Below {
			return u.Name, err
		}
	}
	for _, u := range a.Perhaps {
		if u.Doubt != DoubtChain {
			return u.String(), err
		}
	}
	return "", err
}

// couldBe reports whether a file, by its own name and without links, could be what is not
// known. A raw volume has nothing below it, and lies in its pool's folder.
func (u Unresolved) couldBe(path, real string) bool {
	if u.below == "" {
		return true
	}
	in := func(p string) bool { return strings.HasPrefix(p, strings.TrimSuffix(filepath.Clean(u.below), "/")+"/") }
	return in(path) || in(real)
}

// Act is what is to be done to a file.
type Act string

// The acts.
const (
	Remove  Act = "remove"  // for good
	Replace Act = "replace" // another gets its place; it is kept beside it
)

// Verdict is what becomes of it.
type Verdict string

// The verdicts.
const (
	Go     Verdict = "go"
	Leave  Verdict = "leave"  // the file stays, is named, and whatever else is to be done goes on
	Refuse Verdict = "refuse" // nothing is done
)

// facts are what a decision rests on.
type facts struct{ Used, Open, Perhaps bool }

func (a Answer) facts() facts {
	return facts{Used: len(a.Users) > 0, Open: len(a.Open) > 0, Perhaps: len(a.Perhaps) > 0}
}

// decisions is the table; the first row that holds decides. A nil fact is any.
//
// A file that is removed is lost, so a doubt keeps it. One that is replaced is beside the
// new one: a doubt lets that go on, and keeps the old file when it would be removed.
var decisions = []struct {
	act                 Act
	used, open, perhaps *bool
	verdict             Verdict
}{
	{Remove, yes, nil, nil, Leave},
	{Remove, nil, yes, nil, Leave},
	{Remove, nil, nil, yes, Leave},
	{Remove, no, no, no, Go},
	{Replace, yes, nil, nil, Refuse},
	{Replace, nil, yes, nil, Refuse},
	{Replace, no, no, nil, Go},
}

var (
	is, isNot = true, false
	yes, no   = &is, &isNot
)

func decide(act Act, f facts) Verdict {
	for _, row := range decisions {
		holds := func(want *bool, have bool) bool { return want == nil || *want == have }
		if row.act == act && holds(row.used, f.Used) && holds(row.open, f.Open) && holds(row.perhaps, f.Perhaps) {
			return row.verdict
		}
	}
	return Refuse
}

// Verdict decides about the file.
func (a Answer) Verdict(act Act) Verdict { return decide(act, a.facts()) }

// Kept is a file that was to be removed and stays.
type Kept struct {
	Disk   string `json:"disk"` // vda, or nvram
	Path   string `json:"path"`
	Reason string `json:"reason"`           // who uses it, or why that is not known
	Change string `json:"change,omitempty"` // what an operator types
}

// Why says who uses the file, or may. Empty where nobody does.
func (a Answer) Why() string {
	var out []string
	for _, u := range a.Users {
		how := "is a disk of "
		if u.Below {
			how = "is below a disk of "
		}
		if s := how + u.Name; !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	for _, w := range a.Open {
		out = append(out, "is open in "+w.String())
	}
	for _, u := range a.Perhaps {
		out = append(out, "may be used by "+u.String())
	}
	return strings.Join(out, "; ")
}

// Remedy says what an operator does to have the file removed.
func (a Answer) Remedy() string {
	remove := "rm " + fault.Quote(a.Path)
	switch {
	case len(a.Users) > 0 && a.Users[0].Below:
		return "virsh blockpull " + a.Users[0].Name + " DISK, then " + remove
	case len(a.Users) > 0:
		return "virsh undefine " + a.Users[0].Name + " when it is no longer needed, then " + remove
	case len(a.Open) > 0:
		return "fuser -v " + fault.Quote(a.Path) + "; when nobody has it open, " + remove
	case len(a.Perhaps) > 0:
		return "virsh dumpxml " + a.Perhaps[0].Name + "; when it does not need the file, " + remove
	}
	return remove
}

// Kept is the file as one that stays.
func (a Answer) Kept(disk string) Kept {
	return Kept{Disk: disk, Path: a.Path, Reason: "it " + a.Why(), Change: a.Remedy()}
}

// KeptElsewhere is a file that stays because other hosts use it, or may.
func KeptElsewhere(disk, path, why string) Kept {
	return Kept{Disk: disk, Path: path, Reason: "other hosts see it: " + why, Change: "when no host needs it, rm " + fault.Quote(path)}
}

// Refusal is why a disk is not replaced.
func (a Answer) Refusal(target string) fault.Reason {
	change := a.Remedy()
	if i := strings.Index(change, ", then rm "); i >= 0 {
		change = change[:i] + ", and try again"
	} else if i := strings.Index(change, "; when "); i >= 0 {
		change = change[:i] + ", and try again"
	}
	return fault.Reason{
		Code: "disk_used_by_others", Message: "disk " + target + " (" + a.Path + ") " + a.Why(), Have: a.Path, Change: change,
	}
}

// MayReplace refuses to put another file in the place of an instance's disk that others
// use, here or on a host that may see it; a host that does not say counts as a user. off: the
// instance has no process here, so whoever has the file open is another user. runsOn names
// another host on which the instance may have one; empty for none.
func (s *Survey) MayReplace(ctx context.Context, target, path, instance string, off bool, runsOn string) error {
	a, err := s.Of(path, instance)
	if err != nil {
		return err
	}
	if !off {
		a.Open = nil
	}
	if a.Verdict(Replace) == Refuse {
		return fault.Refuse(fault.Forbidden, "", a.Refusal(target))
	}
	elsewhere, err := s.usedElsewhere(ctx, Question{RunsOn: runsOn, Act: Replace}, instance, path)
	if err != nil {
		return err
	}
	if why := elsewhere[path]; why != "" {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "disk_used_by_others", Message: "disk " + target + " (" + path + ") is on storage that other hosts see: " + why, Have: path,
			Change: "on each host that is named: systemctl start berth, or virsh undefine DOMAIN of what no longer needs the file; of one that is lost: berth host declare-dead HOST --reason \"how you know\"; where Berth does not run, and nothing uses the file: say hosts_without_berth = [\"HOST\"] in [host] of /etc/berth/berth.toml here, then run systemctl reload berth; then try again",
		})
	}
	return nil
}

// Drop removes the old file of a disk that was replaced, or answers why it stays: whoever
// names the disk's path may have meant the old file. Other hosts that may see it are asked.
func (s *Survey) Drop(ctx context.Context, files Dropper, target string, r disks.Replaced, instance string) (*Kept, error) {
	stamp, err := files.Stamp(r.Kept)
	if errors.Is(err, fault.NotFound) || err == nil && !stamp.Equals(r.Old) {
		return nil, files.DropKept(r) // removed before
	}
	if err != nil {
		return nil, err
	}
	a, err := s.Of(r.Kept, instance)
	if err != nil {
		return nil, err
	}
	now, err := s.Of(r.Path, instance)
	if err != nil {
		return nil, err
	}
	a.Users = append(a.Users, now.Users...)
	if a.Verdict(Remove) != Go {
		files.Keep(r.Made)
		k := a.Kept(target)
		return &k, nil
	}
	elsewhere, err := s.UsedElsewhere(ctx, instance, r.Kept, r.Path)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{r.Kept, r.Path} {
		if why := elsewhere[path]; why != "" {
			files.Keep(r.Made)
			k := KeptElsewhere(target, r.Kept, why)
			return &k, nil
		}
	}
	return nil, files.DropKept(r)
}

// Dropper removes old files; disks.Files does.
type Dropper interface {
	Stamp(path string) (disks.Stamp, error)
	DropKept(r disks.Replaced) error
	Keep(m disks.Made)
}
