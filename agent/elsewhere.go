package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"berth/agent/api"
	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// usersElsewhere asks the fleet's records and every other host who uses files that several
// hosts see, and answers by path why a file must stay. Whoever does not answer is a reason. A host
// that counts as dead is not asked: of its instances the records answer. One that Berth never managed
// has none, so nothing goes for good before that host was given up (berth host forget).
// With no records and no other host known nobody else can have a user.
func (a *Agent) usersElsewhere(ctx context.Context, instance string, files []fileusers.Question) map[string]string {
	why := map[string][]string{}
	all := func(reason string) {
		for _, f := range files {
			why[f.Path] = append(why[f.Path], reason)
		}
	}
	dead := map[string]fleet.Death{}
	replace := !slices.ContainsFunc(files, func(f fileusers.Question) bool { return f.Act != fileusers.Replace })
	if records, err := a.fleetRecords(); err == nil {
		known, err := records.Deaths(ctx)
		if _, err = fleet.Unreadable(err); err == nil { // else all are asked
			for _, d := range known {
				dead[d.Host] = d
			}
		}
		list, err := records.Instances(ctx, "")
		if err != nil && !fault.HasReason(err, fleet.NoStore) { // a Placement that keeps none
			all("the fleet's records cannot be read: " + err.Error())
		}
		for path, users := range usersInRecords(list, instance, files) {
			why[path] = append(why[path], users...)
		}
	}
	hosts, err := auditPeers{a}.Hosts(ctx)
	if err != nil {
		all("which other hosts there are is not known: " + err.Error())
	}
	var mu sync.Mutex // guards why and all
	var group runtime.Group
	places := make(chan struct{}, 8)
	for _, host := range hosts {
		if d, counts := dead[host]; counts {
			if !replace && !d.Forgotten {
				mu.Lock()
				all(host + " counts as dead, and an instance that Berth does not manage may use the file there (berth host forget " + host + ", if that host never returns)")
				mu.Unlock()
			}
			continue
		}
		group.Go(a.rt, "ask "+host+" for users of files", func() {
			places <- struct{}{}
			defer func() { <-places }()
			replies, err := a.filesUsedOn(ctx, host, instance, files)
			excused := err != nil && a.withoutBerth(ctx, host)
			mu.Lock()
			defer mu.Unlock()
			if excused {
				return
			}
			if err != nil {
				all(host + " does not say whether it uses the file: " + err.Error())
				return
			}
			for _, f := range files {
				i := slices.IndexFunc(replies, func(r fileusers.Reply) bool { return r.Path == f.Path })
				switch {
				case i < 0:
					why[f.Path] = append(why[f.Path], host+" does not say whether it uses the file")
				case replies[i].Why != "":
					why[f.Path] = append(why[f.Path], "on "+host+" it "+replies[i].Why)
				}
			}
		})
	}
	group.Wait(a.rt)
	out := map[string]string{}
	for path, reasons := range why {
		slices.Sort(reasons)
		out[path] = strings.Join(slices.Compact(reasons), "; ")
	}
	return out
}

// withoutBerth reports whether an operator has said that Berth does not run on a host, and that the
// host uses none of this one's files. The fleet's records contradict him where they have the host;
// where there are records and they do not answer, it is not so.
func (a *Agent) withoutBerth(ctx context.Context, host string) bool {
	if !slices.Contains(a.config().Host.HostsWithoutBerth, host) {
		return false
	}
	records, err := a.fleetRecords()
	if err != nil {
		return fault.HasReason(err, fleet.NoStore)
	}
	_, err = records.Host(ctx, host)
	return errors.Is(err, fault.NotFound) || fault.HasReason(err, fleet.NoStore)
}

func (a *Agent) filesUsedOn(ctx context.Context, host, instance string, files []fileusers.Question) ([]fileusers.Reply, error) {
	c, err := a.peers.client(host)
	if err != nil {
		return nil, err
	}
	asking, cancel := a.rt.WithTimeout(ctx, filesTimeout)
	defer cancel()
	return c.FilesUsed(asking, api.FileQuestion{Instance: instance, Files: files})
}

// usersInRecords are the instances whose records name a file, by the file's path.
func usersInRecords(list []fleet.Instance, except string, files []fileusers.Question) map[string][]string {
	out := map[string][]string{}
	for _, in := range list {
		if in.UUID == except {
			continue
		}
		var g migration.Guest
		if err := json.Unmarshal(in.Guest, &g); err != nil {
			for _, f := range files {
				out[f.Path] = append(out[f.Path], fmt.Sprintf("the fleet's record of %s on %s cannot be read: %v", in.Name, in.Host, err))
			}
			continue
		}
		for _, f := range files {
			if recordNames(g, f) {
				out[f.Path] = append(out[f.Path], "it is a disk of "+in.Name+" on "+in.Host+", or below one, by the fleet's records")
			}
		}
	}
	return out
}

// recordNames reports whether a file is a disk of an instance, or below one.
func recordNames(g migration.Guest, f fileusers.Question) bool {
	same := func(path, identity string) bool {
		return path == f.Path || disks.Reachable(identity) && disks.MayBeSameFile(identity, f.Identity)
	}
	if g.Variables != "" && disks.MayBeSameFile(g.Variables, f.Identity) {
		return true
	}
	for _, d := range g.Disks {
		if same(d.Path, d.Filesystem) || d.BackingFile == f.Path || slices.Contains(d.Outside, f.Path) {
			return true
		}
		for _, b := range d.Chain {
			if same(b.Path, b.Filesystem) {
				return true
			}
		}
	}
	return false
}

// FilesUsed implements api.Agent.
func (s agentService) FilesUsed(ctx context.Context, q api.FileQuestion) ([]fileusers.Reply, error) {
	return s.a.host.FilesUsed(ctx, q.Instance, q.Files)
}
