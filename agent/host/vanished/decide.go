package vanished

import "fmt"

// Process is what the host's processes tell of an instance.
type Process int

// The answers.
const (
	ProcessNone    Process = iota // no QEMU process of it lives
	ProcessLives                  // one does
	ProcessUnknown                // the processes could not be read
)

// Definition is what the folder of persistent definitions tells of an instance.
type Definition int

// The answers.
const (
	DefinitionAbsent  Definition = iota // no file of it, in a folder that is otherwise whole
	DefinitionPresent                   // a file of it, which the hypervisor did not load
	DefinitionUnknown                   // the folder is missing, unreadable, another one, or not whole
)

// Facts are what is known of an instance whose domain the hypervisor does not list.
type Facts struct {
	Process    Process
	Undefined  bool // an event told of its undefine, on this connection, and of no definition since
	Definition Definition
	Ended      bool // an event told that it left by a migration, or it never had a persistent definition and its process ended
	Alone      bool // no other instance is missing without an event
}

// Action is what is done with the instance.
type Action int

// The actions.
const (
	Keep    Action = iota // hold what it has, and look again
	Release               // it is gone: release what it has
)

// Cause is why an instance is kept or released; the code of the reason in status.
type Cause string

// The causes.
const (
	CauseProcess    Cause = "process_lives"
	CauseProcesses  Cause = "processes_unreadable"
	CauseUndefined  Cause = "undefined"
	CausePresent    Cause = "definition_not_loaded"
	CauseUnreadable Cause = "definitions_unreadable"
	CauseEnded      Cause = "ended"
	CauseTogether   Cause = "vanished_together"
	CauseAbsent     Cause = "definition_absent"
)

// row is one line of the table; a nil set holds for every value.
type row struct {
	process    []Process
	undefined  []bool
	definition []Definition
	ended      []bool
	alone      []bool

	action Action
	cause  Cause
}

// table is read from above; the first row that holds decides. The undefine event goes before
// the folder: libvirt has removed the file then, and what lies there was put back by hand.
var table = []row{
	{process: []Process{ProcessLives}, action: Keep, cause: CauseProcess},
	{undefined: []bool{true}, action: Release, cause: CauseUndefined},
	{process: []Process{ProcessUnknown}, action: Keep, cause: CauseProcesses},
	{definition: []Definition{DefinitionPresent}, action: Keep, cause: CausePresent},
	{definition: []Definition{DefinitionUnknown}, action: Keep, cause: CauseUnreadable},
	{ended: []bool{true}, action: Release, cause: CauseEnded},
	{alone: []bool{false}, action: Keep, cause: CauseTogether},
	{action: Release, cause: CauseAbsent},
}

func in[T comparable](set []T, v T) bool {
	for _, s := range set {
		if s == v {
			return true
		}
	}
	return set == nil
}

// Decide reads the table.
func Decide(f Facts) (Action, Cause) {
	for _, r := range table {
		if in(r.process, f.Process) && in(r.undefined, f.Undefined) && in(r.definition, f.Definition) && in(r.ended, f.Ended) && in(r.alone, f.Alone) {
			return r.action, r.cause
		}
	}
	panic(fmt.Sprintf("vanished: no row for %+v", f))
}
