package host

import (
	"errors"
	"slices"
	"strings"

	"berth/internal/fault"
	"berth/migration"
)

// A disk that stands only in the definition (virsh attach-disk --config) is of the next start.
// A live move takes no disk along that QEMU does not have: it must be on storage of both hosts.

// onlyDefined are the disks of a definition that the running instance does not have, by target
// and path; without those that have no file.
func onlyDefined(running, definition document) []diskElement {
	var out []diskElement
	for _, e := range definition.Devices.Disks {
		if e.path() == "" || slices.ContainsFunc(running.Devices.Disks, func(r diskElement) bool { return r.Target.Dev == e.Target.Dev && r.path() == e.path() }) {
			continue
		}
		out = append(out, e)
	}
	return out
}

// definedNeverMoves lists what only the definition of a running instance has, and no move takes
// along: at the next start it would be another thing of that name.
func definedNeverMoves(running document, definition string) ([]fault.Reason, error) {
	if definition == "" {
		return nil, nil
	}
	doc, err := parseDocument(definition)
	if err != nil {
		return nil, err
	}
	now := running.neverMoves()
	var out []fault.Reason
	for _, r := range doc.neverMoves() {
		if slices.ContainsFunc(now, func(o fault.Reason) bool { return o.Have == r.Have }) {
			continue
		}
		// It is not there to be detached from the running instance.
		r.Message, r.Change = r.Message+" (only in the definition)", strings.Replace(r.Change, " --persistent", " --config", 1)
		out = append(out, r)
	}
	return out, nil
}

// viewDefined is what this host has at the paths of such disks.
func viewDefined(files Files, running document, definition string) ([]migration.DiskView, error) {
	if definition == "" {
		return nil, nil
	}
	doc, err := parseDocument(definition)
	if err != nil {
		return nil, err
	}
	var out []migration.DiskView
	for _, e := range onlyDefined(running, doc) {
		id, err := identityAt(files, e.path())
		if err != nil {
			return nil, wrap(err, "disk %s", e.Target.Dev)
		}
		out = append(out, migration.DiskView{Target: e.Target.Dev, Filesystem: id})
	}
	return out, nil
}

// identityAt is Files.Identity; empty where nothing is there, or no file.
func identityAt(files interface {
	Identity(path string) (string, error)
}, path string) (string, error) {
	id, err := files.Identity(path)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
		return "", nil
	}
	return id, err
}

// checkDefined refuses each such disk that the two hosts do not share. A read-only one, as
// install media, is asked for by its path alone, as that of a running instance is.
func checkDefined(files Files, no *refusal, running document, g migration.Guest, a migration.CheckAnswer) error {
	if g.Definition == "" {
		return nil
	}
	doc, err := parseDocument(g.Definition)
	if err != nil {
		return err
	}
	for _, e := range onlyDefined(running, doc) {
		there := ""
		if i := slices.IndexFunc(a.Definition, func(v migration.DiskView) bool { return v.Target == e.Target.Dev }); i >= 0 {
			there = a.Definition[i].Filesystem
		}
		here, err := identityAt(files, e.path())
		if err != nil {
			return wrap(err, "disk %s", e.Target.Dev)
		}
		if there != "" && (here == there || e.readOnly()) {
			continue
		}
		no.add(fault.Forbidden, fault.Reason{
			Code:    "definition_differs",
			Message: "disk " + e.Target.Dev + " (" + e.path() + ") is only in the definition, and not on storage that " + a.Destination.Name + " shares: a live move would leave it behind",
			Have:    e.Target.Dev, Want: e.path(),
			Change: "virsh detach-disk " + g.Name + " " + e.Target.Dev + " --config; or attach it to the running instance too",
		})
	}
	return nil
}
