package vanished

import (
	"slices"

	"berth/driver"
)

// Instance is an instance by the names under which its definition may lie.
type Instance struct{ UUID, Name string }

// Look gives what the folder of definitions tells of a missing instance. listed are the domains
// that the hypervisor has, known the names of all instances of the ledger, and before the
// folder's identity when it was last seen whole; empty for never.
//
// The folder is whole when it holds the file of every persistent domain that is listed. With
// none listed it is whole when it is the same folder as before.
func Look(now driver.Definitions, inst Instance, listed []driver.Domain, known []string, before string) Definition {
	persistent := slices.DeleteFunc(slices.Clone(listed), func(d driver.Domain) bool { return !d.Persistent })
	isListed := func(name string) bool {
		return slices.ContainsFunc(listed, func(d driver.Domain) bool { return d.Name == name })
	}
	for _, f := range now.Files {
		switch {
		case f.UUID == inst.UUID:
			return DefinitionPresent
		case f.UUID == "" && f.Name == inst.Name:
			return DefinitionPresent
		case f.UUID == "" && !isListed(f.Name) && !slices.Contains(known, f.Name):
			return DefinitionPresent // a file that tells nothing may be anybody's: renamed while no agent ran
		}
	}
	for _, d := range persistent {
		if !holds(now, d) {
			return DefinitionUnknown
		}
	}
	if len(persistent) == 0 && (before == "" || now.Identity != before) {
		return DefinitionUnknown
	}
	return DefinitionAbsent
}

// holds reports whether a listed domain has its file in the folder.
func holds(now driver.Definitions, d driver.Domain) bool {
	return slices.ContainsFunc(now.Files, func(f driver.DefinitionFile) bool { return f.UUID == d.UUID || f.Name == d.Name })
}
