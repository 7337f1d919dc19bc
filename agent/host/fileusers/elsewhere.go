package fileusers

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// Question asks a host for a file that others may see, too.
type Question struct {
	Path string `json:"path"`
	// Identity is the asker's disks.Files.Identity of it; empty where it has none.
	Identity string `json:"identity,omitempty"`
	// RunsOn names the host on which the file's instance runs meanwhile; empty for none. Whoever
	// has the file open there does not count: the instance itself has.
	RunsOn string `json:"runs_on,omitempty"`
	// Act is what is to be done; empty is Remove. Before a Replace a doubt does not count, as in
	// the table: the old file is kept, and asked for again before it is removed.
	Act Act `json:"act,omitempty"`
}

// Reply answers it.
type Reply struct {
	Path string `json:"path"`
	// Why says who uses the file on the host that answers, or may; empty for nobody.
	Why string `json:"why,omitempty"`
}

// Elsewhere asks all that know of other hosts who uses files: the fleet's records and the
// hosts. It answers by path why a file must stay, also for whoever did not answer; a file
// that is not among them nobody else uses. instance does not count as a user.
type Elsewhere func(ctx context.Context, instance string, files []Question) map[string]string

// UsedElsewhere asks for those of the files that other hosts may see who uses them there. It
// answers by path why a file stays; instance does not count as a user. It blocks until every
// host has answered or its time is over.
func (s *Survey) UsedElsewhere(ctx context.Context, instance string, paths ...string) (map[string]string, error) {
	return s.usedElsewhere(ctx, Question{}, instance, paths...)
}

// usedElsewhere asks one question of each path.
func (s *Survey) usedElsewhere(ctx context.Context, q Question, instance string, paths ...string) (map[string]string, error) {
	if s.elsewhere == nil {
		return nil, nil
	}
	var ask []Question
	unknown := map[string]string{} // it stays: the end of a move does not wait for a table of exports
	for _, path := range paths {
		shared, err := s.files.Shared(path)
		if reasons := fault.ReasonsOf(err); len(reasons) == 1 && reasons[0].Code == disks.ExportsUnreadable {
			unknown[path] = reasons[0].Message
			continue
		}
		if err != nil {
			return nil, err
		}
		if !shared && !slices.ContainsFunc(s.sharedDirs, func(dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }) {
			continue
		}
		id, err := s.files.Identity(path)
		if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
			id, err = "", nil
		}
		if err != nil {
			return nil, err
		}
		q.Path, q.Identity = path, id
		ask = append(ask, q)
	}
	if len(ask) == 0 {
		return unknown, nil
	}
	maps.Copy(unknown, s.elsewhere(ctx, instance, ask))
	return unknown, nil
}

// Asked answers a question of another host; host is the name of this one. A file is found by its identity, wherever it is
// mounted and by whichever name of its server, and by its path on storage that others may see.
// One that has no identity beyond its host is found by its name in other folders, too.
func (s *Survey) Asked(q Question, host, except string) (Reply, error) {
	r := Reply{Path: q.Path}
	a, err := s.Of(q.Path, except)
	if err != nil {
		return r, err
	}
	own, err := s.files.Identity(q.Path)
	shared, lookErr := s.files.Shared(q.Path)
	if err == nil && (disks.Differ(own, q.Identity) || lookErr == nil && !shared && own != "" && q.Identity != "" && !disks.SameFile(own, q.Identity)) {
		a.Users, a.Open = nil, nil // this host has another file of that name, which the other does not see
	}
	if q.RunsOn != "" && q.RunsOn == host {
		a.Open = nil
	}
	if q.Act == Replace {
		a.Perhaps = nil
	}
	for _, u := range s.elsewhereNamed(q) {
		if u.Instance != except {
			a.Users = append(a.Users, u)
		}
	}
	r.Why = a.Why()
	return r, nil
}

// served reports whether a file is one that this host itself serves to others, or may: it has
// another identity for them than here.
func (s *Survey) served(path string) bool {
	shared, err := s.files.Shared(path)
	if err != nil {
		return true
	}
	own, err := s.files.Identity(path)
	return shared && err == nil && !disks.Reachable(own)
}

// sameName reports whether paths of two hosts may name one file, wherever each has it mounted. Files
// of instances may all have one name (Nova's disk), each in a folder named by its instance's UUID.
func sameName(a, b string) bool {
	if filepath.Base(a) != filepath.Base(b) {
		return false
	}
	inA, inB := filepath.Base(filepath.Dir(a)), filepath.Base(filepath.Dir(b))
	return inA == inB || uuid.Validate(inA) != nil || uuid.Validate(inB) != nil
}

// elsewhereNamed are the users of a file that has another path here.
func (s *Survey) elsewhereNamed(q Question) []User {
	var out []User
	for file, users := range s.users {
		if disks.MayBeSameFile(file, q.Identity) {
			out = append(out, users...)
		}
	}
	for path, users := range s.named {
		if !sameName(path, q.Path) || path == filepath.Clean(q.Path) {
			continue
		}
		if disks.Reachable(q.Identity) && !s.served(path) {
			continue // it would have been known by its identity
		}
		own, err := s.files.Identity(path)
		if err == nil && disks.Differ(own, q.Identity) {
			continue // one of the two hosts serves the other, and these are two files
		}
		// A file of one kernel and of the same one: it can be told apart.
		if err == nil && own != "" && q.Identity != "" && !disks.SameFile(own, q.Identity) {
			if shared, err := s.files.Shared(path); err == nil && !shared {
				continue
			}
		}
		out = append(out, users...)
	}
	return out
}
